#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/types/model_spec.h"
#include "server/checkpoint/durability.h"

namespace psd {

/// What one of a model's daemons has left in its folder.
struct SavedPartition {
  std::string folder;
  std::unique_ptr<Durability> durability;  ///< holds the folder for this process
  Checkpoint checkpoint;                   ///< what the daemon would go on from
  uint64_t begin = 0;                      ///< of the partition, in the whole model's layout
  bool logged = false;                     ///< a log leads on from the checkpoint
};

/// What all daemons of a model have left, of a model that one serves alone as well, to be put together again.
/// No daemon works in the folders meanwhile. Owned by one thread.
class SavedPartitions {
 public:
  /// Takes the folders, `durability.path` of each daemon, in any order, and finds what each daemon would go
  /// on from, by its rules; `together`: in its place its part of the checkpoint of the whole model that the
  /// lead's folder names. ErrorCode::invalidArgument where they are not those of one run, each once;
  /// ErrorCode::unavailable where a daemon has one. `env` outlives the object. Blocks.
  static Result<SavedPartitions> take(Env& env, const std::vector<std::string>& folders,
                                      bool together = false);

  /// In the order of the partitions.
  const std::vector<SavedPartition>& parts() const { return parts_; }
  /// All of them together.
  const ModelSpec& model() const { return model_; }

  /// What all of it comes to.
  struct Outcome {
    std::vector<PlacedCheckpoint> checkpoints;  ///< in the order of the partitions; of this object
    Consistency consistency = Consistency::perShard;
    std::optional<SavedSamples> samples;  ///< of the lead, none of them under way
    std::optional<Departed> departed;     ///< who was seen to go by all daemons
    std::vector<std::string> notes;       ///< what is lost, a line each
  };
  /// Repeats the logs; the checkpoints are then of their ends, and lie in the folder `scratch` where there is
  /// a log. Needs the memory of one partition at a time. Once. Blocks.
  Result<Outcome> finish(const std::string& scratch);

 private:
  explicit SavedPartitions(Env& env) : env_(&env) {}

  Status find(const std::string& folder);
  /// Whether these are all partitions of one run; finds the whole model, and where each begins.
  Status putTogether();
  Status checkNumbers() const;
  /// Takes the parts of the checkpoint of the whole model.
  Status takeWhole();
  Status checkRules() const;
  Status repeatLog(SavedPartition& part, const std::string& scratch);
  /// The plan of the samples as the lead would go on with it.
  SamplePlan plan() const;
  Status addDeparted(Outcome& outcome) const;
  void noteUnevenPushes(Outcome& outcome) const;

  Env* env_;
  std::vector<SavedPartition> parts_;
  ModelSpec model_;
};

}  // namespace psd
