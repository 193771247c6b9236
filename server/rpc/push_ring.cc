#include "server/rpc/push_ring.h"

#include <string>

#include "common/types/model_layout.h"

namespace psd {
namespace {

constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);

}  // namespace

Result<std::unique_ptr<PushRing>> PushRing::make(uint64_t bytes, const Limits& limits,
                                                 wire::ByteBudget& all) {
  if (bytes == 0 || bytes > limits.ringBytes) {
    return Error{ErrorCode::invalidArgument, "a ring of " + std::to_string(bytes) +
                                                 " bytes: limits.ring_bytes allows 1 to " +
                                                 std::to_string(limits.ringBytes)};
  }
  auto lease = all.tryTake(bytes);
  if (!lease) {
    return Error{ErrorCode::overloaded, "a ring of " + std::to_string(bytes) + " bytes: all rings have " +
                                            std::to_string(all.used()) +
                                            " already, and limits.all_rings_bytes allows " +
                                            std::to_string(limits.allRingsBytes)};
  }
  PSD_ASSIGN_OR_RETURN(auto memory, SharedMemory::create("psd-push-ring", bytes, SharedAccess::readWrite));
  return std::unique_ptr<PushRing>(new PushRing(std::move(memory), std::move(*lease)));
}

Result<std::span<const float>> PushRing::floatsAt(uint64_t at, uint64_t count) const {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::badSlice,
                 std::to_string(count) + " elements at byte " + std::to_string(at) + " of the ring: " + why};
  };
  if (at % kGrainBytes != 0) return bad("places begin at multiples of " + std::to_string(kGrainBytes));
  const uint64_t bytes = memory_->bytes();
  if (at > bytes || count > (bytes - at) / sizeof(float)) {
    return bad("it has " + std::to_string(bytes) + " bytes");
  }
  return std::span<const float>(reinterpret_cast<const float*>(memory_->data() + at), count);
}

}  // namespace psd
