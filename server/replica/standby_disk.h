#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/checkpoint/durability.h"

namespace psd {

/// Saves a standby's copy on its own disk: a first checkpoint of the copy, then the log of its updates, and
/// checkpoints as configured in `durability`. A daemon started over the folder resumes from it as from a
/// primary's. Used by one thread at a time: the follower's, then the one that joined it. Every method may
/// block.
class StandbyDisk {
 public:
  /// `copy`: the model to save. `mark` records the origin of the folder's state. Stops the previous saving.
  StandbyDisk(Durability& durability, CheckpointSource copy, std::function<Status()> mark);
  /// Stops the saving, unless keepSaving() was called.
  ~StandbyDisk();

  /// Writes a checkpoint of the copy, then the mark. Later updates are logged by the copy's blocks.
  Status begin();
  /// The sample plan that checkpoints save.
  const std::shared_ptr<GuardedSamples>& samples() const { return durability_.samples(); }
  /// The locks that a checkpoint holds while it copies the shards of a parameter group together; null: none.
  std::vector<std::shared_ptr<ShardLock>> groupLocks() const;
  void assigned(const LoggedAssignment& assignment);
  Status departed(const Departed& departed);
  /// Flushes the log to disk.
  Status flush();
  /// The daemon serves the copy from now on and continues to save it.
  void keepSaving() { keepSaving_ = true; }

 private:
  Durability& durability_;
  const CheckpointSource copy_;
  const std::function<Status()> mark_;
  bool keepSaving_ = false;
};

}  // namespace psd
