#include "server/push/ring_rules.h"

#include <string>

#include "common/types/model_layout.h"

namespace psd {

Result<ByteBudget::Lease> leaseRing(uint64_t bytes, uint64_t taken, const Limits& limits, ByteBudget& all) {
  if (bytes == 0 || bytes > limits.ringBytes) {
    return Error{ErrorCode::invalidArgument, "a ring of " + std::to_string(bytes) +
                                                 " bytes: limits.ring_bytes allows 1 to " +
                                                 std::to_string(limits.ringBytes)};
  }
  auto lease = all.tryTake(taken);
  if (!lease) {
    return Error{ErrorCode::overloaded, "a ring of " + std::to_string(taken) + " bytes: all rings take " +
                                            std::to_string(all.used()) +
                                            " already, and limits.all_rings_bytes allows " +
                                            std::to_string(limits.allRingsBytes)};
  }
  return std::move(*lease);
}

Status checkPlaceInRing(uint64_t at, uint64_t count, uint64_t ringBytes) {
  constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);
  auto bad = [&](const std::string& why) {
    return Status(ErrorCode::badSlice,
                  std::to_string(count) + " elements at byte " + std::to_string(at) + " of the ring: " + why);
  };
  if (at % kGrainBytes != 0) return bad("offsets must be multiples of " + std::to_string(kGrainBytes));
  if (at > ringBytes || count > (ringBytes - at) / sizeof(float)) {
    return bad("the ring has " + std::to_string(ringBytes) + " bytes");
  }
  return {};
}

}  // namespace psd
