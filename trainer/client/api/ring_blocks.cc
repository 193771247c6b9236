#include "trainer/client/api/ring_blocks.h"

#include <functional>
#include <span>
#include <utility>

#include "common/types/model_layout.h"

namespace psd {
namespace {

constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);

}  // namespace

RingBlocks::RingBlocks(std::shared_ptr<SharedMemory> ring, uint64_t begin, uint64_t bytes)
    : ring_(std::move(ring)), begin_(begin), end_(begin + bytes) {}

std::shared_ptr<float> RingBlocks::take(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_ || bytes > end_ - begin_) return nullptr;
  const uint64_t needed = (bytes + kGrainBytes - 1) / kGrainBytes * kGrainBytes;
  uint64_t at = begin_;  // the first gap that is large enough
  for (const auto& [begin, end] : taken_) {
    if (begin - at >= needed) break;
    at = end;
  }
  if (needed > end_ - at) return nullptr;
  taken_.emplace(at, at + needed);
  auto* const block = reinterpret_cast<float*>(ring_->data() + at);
  return {block, [self = shared_from_this(), at](float*) { self->release(at); }};
}

void RingBlocks::release(uint64_t at) {
  const std::lock_guard lock(mutex_);
  taken_.erase(at);
}

void RingBlocks::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool RingBlocks::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::optional<uint64_t> RingBlocks::placeOf(std::span<const float> values) const {
  const auto* const from = reinterpret_cast<const std::byte*>(values.data());
  const auto ring = std::span(ring_->data(), ring_->bytes()).subspan(begin_, end_ - begin_);
  if (std::less()(from, ring.data()) || !std::less()(from, ring.data() + ring.size())) return {};
  const auto inRing = static_cast<uint64_t>(from - ring.data());
  if (values.size_bytes() > ring.size() - inRing || (begin_ + inRing) % kGrainBytes != 0) return {};
  return begin_ + inRing;
}

}  // namespace psd
