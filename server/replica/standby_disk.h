#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/checkpoint/durability.h"

namespace psd {

/// What a standby keeps of its primary's model on its own disk: a first checkpoint of the copy, from then on
/// the log of its updates, and checkpoints as `durability` says. A daemon that is started over the folder
/// goes on from it as from a primary's. One thread at a time uses it: the follower's, then whoever joined
/// that one. Every method may block.
class StandbyDisk {
 public:
  /// `copy`: what there is to save. `mark` writes down whose state the folder has. Ends what was saved
  /// before.
  StandbyDisk(Durability& durability, CheckpointSource copy, std::function<Status()> mark);
  /// Ends the saving, unless keepOn() was called.
  ~StandbyDisk();

  /// Brings the copy to the disk as it is, and the mark. What comes after it is logged by the copy's blocks.
  Status begin();
  /// Where the plan of the samples is to be, for the checkpoints.
  const std::shared_ptr<GuardedSamples>& samples() const { return durability_.samples(); }
  /// The locks that a checkpoint holds while it copies the shards of a group together; null: none.
  std::vector<std::shared_ptr<ShardLock>> groupLocks() const;
  void dealt(const LoggedDeal& deal);
  Status departed(const Departed& departed);
  /// Brings all that was logged to the disk.
  Status flush();
  /// The daemon goes on with the copy, and saves it on.
  void keepOn() { goesOn_ = true; }

 private:
  Durability& durability_;
  const CheckpointSource copy_;
  const std::function<Status()> mark_;
  bool goesOn_ = false;
};

}  // namespace psd
