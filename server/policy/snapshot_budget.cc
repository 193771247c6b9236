#include "server/policy/snapshot_budget.h"

#include <algorithm>

namespace psd {

void SnapshotBudget::add(Keeper& keeper) {
  const std::lock_guard lock(mutex_);
  keepers_.insert(&keeper);
}

void SnapshotBudget::remove(Keeper& keeper) {
  const std::lock_guard lock(mutex_);
  keepers_.erase(&keeper);
}

bool SnapshotBudget::evictOne() {
  const std::lock_guard lock(mutex_);
  return std::any_of(keepers_.begin(), keepers_.end(), [](Keeper* keeper) { return keeper->evictOldest(); });
}

std::optional<ByteBudget::Lease> SnapshotBudget::tryTake(uint64_t bytes) {
  auto lease = budget_->tryTake(bytes);
  while (!lease && evictOne()) lease = budget_->tryTake(bytes);
  return lease;
}

kj::Promise<ByteBudget::Lease> SnapshotBudget::take(uint64_t bytes) {
  auto lease = budget_->take(bytes);
  evictForWaiters();  // evicts snapshots retained before this call counted as waiting
  return lease;
}

void SnapshotBudget::evictForWaiters() {
  while (budget_->waiting() > 0 && evictOne()) continue;
}

}  // namespace psd
