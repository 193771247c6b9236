#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "server/policy/update_policy.h"

namespace psd {

/// The weights that trainers pulled and have not yet pushed for, as delay compensation needs them: the newest
/// snapshots of each trainer and shard. Trainers that pulled one version share its snapshot. Where a pull has
/// no room for a snapshot, the oldest ones are let go of. Thread-safe.
class PulledWeights final : private SnapshotRoom::Keeper {
 public:
  /// `room`: what the snapshots have their memory of.
  explicit PulledWeights(std::shared_ptr<SnapshotRoom> room) : room_(std::move(room)) { room_->add(*this); }
  /// Without a bound on the memory of snapshots.
  PulledWeights() : PulledWeights(std::make_shared<SnapshotRoom>(ByteBudget::make(UINT64_MAX))) {}
  ~PulledWeights() override { room_->remove(*this); }
  PulledWeights(const PulledWeights&) = delete;
  PulledWeights& operator=(const PulledWeights&) = delete;

  /// Snapshots kept of a trainer and shard; the next pull lets go of the oldest.
  static constexpr size_t kKept = 4;

  /// Notes that a trainer is in. To be called before its first note().
  void admit(SessionId session);
  /// Keeps what a trainer pulled; nothing for one that is not in, such as one that left while it pulled.
  void note(SessionId session, ShardId shard, std::shared_ptr<const ShardSnapshot> pulled);
  /// The weights that the trainer pulled at that version; null where they are not known. Lets go of the
  /// trainer's older snapshots of the shard.
  std::shared_ptr<const ShardSnapshot> find(SessionId session, ShardId shard, Version version);
  void forget(SessionId session);

 private:
  bool letGoOfOldest() override;

  struct Kept {
    std::shared_ptr<const ShardSnapshot> snapshot;
    uint64_t turn = 0;  ///< rises with each that is noted
  };
  using Versions = std::map<Version, Kept>;

  const std::shared_ptr<SnapshotRoom> room_;
  std::mutex mutex_;  // for few instructions
  uint64_t turn_ = 0;
  std::map<SessionId, std::map<ShardId, Versions>> trainers_;
};

}  // namespace psd
