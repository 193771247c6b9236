#include "trainer/client/transport/ring_places.h"

#include <algorithm>

#include <fmt/format.h>
#include <kj/debug.h>

#include "common/types/model_layout.h"

namespace psd {

RingSizes RingSizes::of(const std::vector<Slice>& slices, uint64_t bytesMax, uint32_t window) {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  const uint64_t bytes = (largestSlice(slices) + kGrain - 1) / kGrain * kGrain * sizeof(float);
  return {bytes, static_cast<uint32_t>(std::min<uint64_t>(std::max(window, 1u), bytesMax / bytes))};
}

uint64_t ringSliceBytes(uint64_t modelBytes, uint64_t chunkBytes, uint64_t most, uint64_t ringBytes) {
  constexpr uint64_t kSlicesMin = 16, kMiB = 1 << 20;
  const uint64_t share = modelBytes / kSlicesMin / kMiB * kMiB;
  return std::max(chunkBytes, std::min({share, most, ringBytes / 4}));
}

uint32_t ringWindow(const std::vector<Slice>& slices, uint32_t most) {
  constexpr uint64_t kRingBytes = 8u << 20;
  constexpr uint32_t kLeast = 2;
  const uint64_t sliceBytes = std::max<uint64_t>(largestSlice(slices), 1) * sizeof(float);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kRingBytes / sliceBytes, kLeast, std::max(most, kLeast)));
}

RingPlaces::RingPlaces(uint64_t begin, uint64_t bytes, uint32_t count)
    : begin_(begin), bytes_(bytes), count_(count) {
  for (uint32_t index = count; index-- > 0;) free_.push_back(index);
}

Status RingPlaces::checkSlice(uint64_t bytes) const {
  if (bytes <= bytes_) return {};
  return {ErrorCode::badSlice, fmt::format("a slice of {} bytes in a ring with places of {}", bytes, bytes_)};
}

RingPlaces::Place RingPlaces::take() {
  if (lost_) kj::throwFatalException(broken());
  KJ_REQUIRE(!free_.empty(), "more slices in flight than the ring has places");
  const uint32_t index = free_.back();
  free_.pop_back();
  return {*this, index};
}

kj::Promise<RingPlaces::Place> RingPlaces::takeWhenFree() {
  if (lost_) return broken();
  if (!free_.empty()) return take();
  auto pair = kj::newPromiseAndFulfiller<Place>();
  waiting_.push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

void RingPlaces::release(uint32_t index) {
  while (!waiting_.empty()) {
    auto next = kj::mv(waiting_.front());
    waiting_.pop_front();
    if (next->isWaiting()) return next->fulfill(Place(*this, index));
  }
  free_.push_back(index);
}

void RingPlaces::lose() {
  lost_ = true;
  for (auto& waiting : std::exchange(waiting_, {})) waiting->reject(broken());
}

kj::Exception RingPlaces::broken() { return KJ_EXCEPTION(DISCONNECTED, "the connection of the ring broke"); }

}  // namespace psd
