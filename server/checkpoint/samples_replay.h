#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "server/checkpoint/log_format.h"
#include "server/checkpoint/manifest.h"

namespace psd {

/// Determines which samples of a saved plan are done, namely those for which every shard has the trainer's
/// push, from the checkpoint and then, record by record, from the log. Owned by one thread.
class SamplesReplay {
 public:
  /// `plan`: where the plan is kept; other threads may save it meanwhile.
  explicit SamplesReplay(const Manifest& manifest,
                         std::shared_ptr<GuardedSamples> plan = std::make_shared<GuardedSamples>());

  /// Applies the records of the log that continues from the checkpoint, in order, including updates that its
  /// shards have already.
  Status assign(const LoggedAssignment& logged);
  void update(ShardId shard, std::span<const UpdateSource> sources);

  /// The sample plan that matches the model; samples whose outcome is unknown stay away (SamplePlan::away()).
  /// Not begun if there was no plan.
  SamplePlan finish() &&;

 private:
  using Key = SamplePlan::AwayKey;
  void hold(const Key& key, ShardId shard);

  const size_t shards_;
  std::shared_ptr<GuardedSamples> plan_;
  std::map<Key, std::set<ShardId>> holders_;                   // shards that have the push, if not all do
  std::map<std::pair<ShardId, TrainerProcess>, Step> newest_;  // newest push that a shard has
};

}  // namespace psd
