#include "server/rpc/push_ring.h"

#include "server/rpc/ring_rules.h"

namespace psd {

Result<std::unique_ptr<PushRing>> PushRing::make(uint64_t bytes, const Limits& limits,
                                                 wire::ByteBudget& all) {
  PSD_ASSIGN_OR_RETURN(auto lease, leaseRing(bytes, bytes, limits, all));
  PSD_ASSIGN_OR_RETURN(auto memory, SharedMemory::create("psd-push-ring", bytes, SharedAccess::readWrite));
  return std::unique_ptr<PushRing>(new PushRing(std::move(memory), std::move(lease)));
}

Result<std::span<const float>> PushRing::floatsAt(uint64_t at, uint64_t count) const {
  PSD_RETURN_IF_ERROR(checkPlaceInRing(at, count, memory_->bytes()));
  return std::span<const float>(reinterpret_cast<const float*>(memory_->data() + at), count);
}

}  // namespace psd
