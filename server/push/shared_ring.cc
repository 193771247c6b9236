#include "server/push/shared_ring.h"

#include <string>
#include <utility>

#include "server/push/ring_rules.h"

namespace psd {
namespace {

/// The memory of a ring with its leases from the daemon's budgets. Thread-safe.
struct LeasedMemory {
  ByteBudget::Lease bytes, file;
  std::shared_ptr<SharedMemory> memory;
};

}  // namespace

Result<std::unique_ptr<SharedRing>> SharedRing::make(uint64_t bytes, const Limits& limits, ByteBudget& all,
                                                     ByteBudget& files) {
  PSD_ASSIGN_OR_RETURN(auto lease, leaseRing(bytes, bytes, limits, all));
  auto file = files.tryTake(1);
  if (!file) {
    return Error{ErrorCode::overloaded, "a ring takes a file descriptor, and the " +
                                            std::to_string(files.used()) +
                                            " that the system leaves for rings are in use (ulimit -n)"};
  }
  PSD_ASSIGN_OR_RETURN(auto memory, SharedMemory::create("psd-ring", bytes, SharedAccess::readWrite));
  auto leased =
      std::make_shared<LeasedMemory>(LeasedMemory{std::move(lease), *std::move(file), std::move(memory)});
  std::shared_ptr<SharedMemory> whole(leased, leased->memory.get());
  return std::unique_ptr<SharedRing>(new SharedRing(std::move(whole)));
}

Result<std::span<float>> SharedRing::floatsAt(uint64_t at, uint64_t count) const {
  PSD_RETURN_IF_ERROR(checkPlaceInRing(at, count, memory_->bytes()));
  return std::span<float>(reinterpret_cast<float*>(memory_->data() + at), count);
}

}  // namespace psd
