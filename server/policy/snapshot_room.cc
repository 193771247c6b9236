#include "server/policy/snapshot_room.h"

#include <algorithm>

namespace psd {

void SnapshotRoom::add(Keeper& keeper) {
  const std::lock_guard lock(mutex_);
  keepers_.insert(&keeper);
}

void SnapshotRoom::remove(Keeper& keeper) {
  const std::lock_guard lock(mutex_);
  keepers_.erase(&keeper);
}

bool SnapshotRoom::letGo() {
  const std::lock_guard lock(mutex_);
  return std::any_of(keepers_.begin(), keepers_.end(),
                     [](Keeper* keeper) { return keeper->letGoOfOldest(); });
}

std::optional<ByteBudget::Lease> SnapshotRoom::tryTake(uint64_t bytes) {
  auto lease = budget_->tryTake(bytes);
  while (!lease && letGo()) lease = budget_->tryTake(bytes);
  return lease;
}

kj::Promise<ByteBudget::Lease> SnapshotRoom::take(uint64_t bytes) {
  auto lease = budget_->take(bytes);
  letGoForThoseWhoWait();  // evicts snapshots retained before this call counted as waiting
  return lease;
}

void SnapshotRoom::letGoForThoseWhoWait() {
  while (budget_->waiting() > 0 && letGo()) continue;
}

}  // namespace psd
