#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include <kj/async.h>

#include "common/budget/byte_budget.h"

namespace psd {

/// The memory of the snapshots of all policies (limits.snapshot_bytes). Before a pull waits for room,
/// snapshots that are kept for other purposes are let go of. Thread-safe.
class SnapshotRoom {
 public:
  /// A policy's part that keeps snapshots and can let go of them. Thread-safe.
  class Keeper {
   public:
    virtual ~Keeper() = default;
    /// Lets go of the oldest snapshot. False where there is none.
    virtual bool letGoOfOldest() = 0;
  };

  explicit SnapshotRoom(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}

  /// A keeper's first and last act.
  void add(Keeper& keeper);
  void remove(Keeper& keeper);

  /// Takes room for a snapshot; none where pulls that are under way have all there is.
  std::optional<ByteBudget::Lease> tryTake(uint64_t bytes);
  kj::Promise<ByteBudget::Lease> take(uint64_t bytes);
  /// Has keepers let go of snapshots as long as somebody waits and something is kept.
  void letGoForThoseWhoWait();

 private:
  bool letGo();

  const std::shared_ptr<ByteBudget> budget_;
  std::mutex mutex_;  // guards what follows, and held while a keeper lets go, for few instructions
  std::set<Keeper*> keepers_;
};

}  // namespace psd
