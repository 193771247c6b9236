#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "server/policy/update_policy.h"

namespace psd {

/// The weights that trainers pulled and have not pushed for yet, for delay compensation: the newest snapshots
/// per trainer and shard. Trainers that pulled the same version share its snapshot. If a pull lacks memory
/// for a snapshot, the oldest ones are evicted. Thread-safe.
class PulledWeights final : private SnapshotBudget::Keeper {
 public:
  /// `budget`: the memory budget of the snapshots.
  explicit PulledWeights(std::shared_ptr<SnapshotBudget> budget) : budget_(std::move(budget)) {
    budget_->add(*this);
  }
  /// Without a limit on snapshot memory.
  PulledWeights() : PulledWeights(std::make_shared<SnapshotBudget>(ByteBudget::make(UINT64_MAX))) {}
  ~PulledWeights() override { budget_->remove(*this); }
  PulledWeights(const PulledWeights&) = delete;
  PulledWeights& operator=(const PulledWeights&) = delete;

  /// Snapshots retained per trainer and shard; a further pull evicts the oldest.
  static constexpr size_t kKept = 4;

  /// Adds a joined trainer; must precede its first note().
  void admit(SessionId session);
  /// Retains what a trainer pulled. Ignores trainers that are not joined, such as one that departed during
  /// its pull.
  void note(SessionId session, ShardId shard, std::shared_ptr<const ShardSnapshot> pulled);
  /// The weights that the trainer pulled at this version; null if they are not retained. Drops the trainer's
  /// older snapshots of the shard.
  std::shared_ptr<const ShardSnapshot> find(SessionId session, ShardId shard, Version version);
  void forget(SessionId session);

 private:
  bool evictOldest() override;

  struct Kept {
    std::shared_ptr<const ShardSnapshot> snapshot;
    uint64_t turn = 0;  ///< increases with each note()
  };
  using Versions = std::map<Version, Kept>;

  const std::shared_ptr<SnapshotBudget> budget_;
  std::mutex mutex_;  // guards the members below; held briefly
  uint64_t turn_ = 0;
  std::map<SessionId, std::map<ShardId, Versions>> trainers_;
};

}  // namespace psd
