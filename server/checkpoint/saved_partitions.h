#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/types/model_spec.h"
#include "server/checkpoint/durability.h"

namespace psd {

/// The saved state of one of a model's daemons.
struct SavedPartition {
  std::string folder;
  std::unique_ptr<Durability> durability;  ///< holds the folder for this process
  Checkpoint checkpoint;                   ///< the one from which the daemon would resume
  uint64_t begin = 0;                      ///< the partition's offset in the layout of the whole model
  bool logged = false;                     ///< a log continues from the checkpoint
};

/// An earlier moment than that of the saved state, to which the partitions of a model can be rebuilt from
/// checkpoints and logs. A value type.
struct SavedMoment {
  std::vector<std::vector<Version>> ends;  ///< by partition number: the last update of each shard
  /// Called once for each partition, in any order, with the store that was rebuilt at `ends`: an Error if its
  /// values are not those that the partition had at the moment.
  std::function<Status(size_t partition, ParameterStore& store)> check;
};

/// The saved state of all daemons of a model, also of one unpartitioned, to be merged. No daemon may use the
/// folders meanwhile. Owned by one thread.
class SavedPartitions {
 public:
  /// Takes the folders, `durability.path` of each daemon, in any order, and finds the checkpoints from which
  /// the daemons would resume. With `together`, takes instead their parts of the checkpoint of the whole
  /// model that the lead's folder names. ErrorCode::invalidArgument if the folders are not exactly those of
  /// one run; ErrorCode::unavailable if a daemon holds one. `env` outlives the object. Blocks.
  static Result<SavedPartitions> take(Env& env, const std::vector<std::string>& folders,
                                      bool together = false);

  /// Takes the state at a moment in place of the newest; call before finish(). ErrorCode::invalidArgument for
  /// a model with embedding tables.
  Status returnTo(SavedMoment moment);
  bool returns() const { return moment_.has_value(); }
  /// By partition number.
  const std::vector<SavedPartition>& parts() const { return parts_; }
  /// The whole model.
  const ModelSpec& model() const { return model_; }

  /// The merged state.
  struct Outcome {
    std::vector<PlacedCheckpoint> checkpoints;  ///< by partition number; owned by this object
    Consistency consistency = Consistency::perShard;
    std::optional<SavedSamples> samples;  ///< of the lead, with no sample assigned
    std::optional<Departed> departed;     ///< ranks that all daemons saw finish
    std::vector<std::string> notes;       ///< losses, one line each
  };
  /// Replays the logs, and checkpoints the results in the folder `scratch` if there is a log. Needs the
  /// memory of one partition at a time. Call once. Blocks.
  Result<Outcome> finish(const std::string& scratch);

 private:
  explicit SavedPartitions(Env& env) : env_(&env) {}

  Status find(const std::string& folder);
  /// Checks that these are all partitions of one run; builds the whole model and finds the offset of each.
  Status assemble();
  Status checkNumbers() const;
  /// Switches to the parts of the checkpoint of the whole model.
  Status useWholeCheckpoint();
  Status checkRules() const;
  Status replayLog(SavedPartition& part, const std::string& scratch);
  /// Rebuilds a partition at the moment, and checkpoints it in `scratch`.
  Status rebuildAt(const SavedMoment& moment, SavedPartition& part, const std::string& scratch);
  /// The sample plan with which the lead would resume.
  SamplePlan plan() const;
  Status addDeparted(Outcome& outcome) const;
  void noteUnevenPushes(Outcome& outcome) const;

  Env* env_;
  std::vector<SavedPartition> parts_;
  ModelSpec model_;
  std::optional<SavedMoment> moment_;
};

}  // namespace psd
