#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include <kj/async.h>

#include "common/budget/byte_budget.h"

namespace psd {

/// The memory budget for the snapshots of all policies (limits.snapshot_bytes). Before a pull waits for
/// space, snapshots retained for other purposes are evicted. Thread-safe.
class SnapshotBudget {
 public:
  /// Retains snapshots and can evict them. Thread-safe.
  class Keeper {
   public:
    virtual ~Keeper() = default;
    /// Evicts the oldest snapshot. Returns false if there is none.
    virtual bool evictOldest() = 0;
  };

  explicit SnapshotBudget(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}

  /// Registers and unregisters a keeper.
  void add(Keeper& keeper);
  void remove(Keeper& keeper);

  /// Reserves space for a snapshot; nullopt if pulls in flight use the whole budget.
  std::optional<ByteBudget::Lease> tryTake(uint64_t bytes);
  kj::Promise<ByteBudget::Lease> take(uint64_t bytes);
  /// Evicts retained snapshots while take() calls wait for space.
  void evictForWaiters();

 private:
  bool evictOne();

  const std::shared_ptr<ByteBudget> budget_;
  std::mutex mutex_;  // guards the members below; held briefly, also while a keeper evicts
  std::set<Keeper*> keepers_;
};

}  // namespace psd
