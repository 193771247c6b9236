#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "server/checkpoint/log_format.h"
#include "server/checkpoint/manifest.h"

namespace psd {

/// Finds out what of a saved plan is done: that of which every shard holds its trainer's push, by what the
/// checkpoint says of them and then, record by record, the log. Owned by one thread.
class SamplesReplay {
 public:
  /// `plan`: where the plan is kept, for whoever saves it meanwhile.
  explicit SamplesReplay(const Manifest& manifest,
                         std::shared_ptr<GuardedSamples> plan = std::make_shared<GuardedSamples>());

  /// The records of the log that goes on from the checkpoint, in order; also of updates that its shards have
  /// already.
  Status deal(const LoggedDeal& logged);
  void update(ShardId shard, std::span<const UpdateSource> sources);

  /// The plan as it belongs to the model, with what nobody knows of away; not begun where there was none.
  SamplePlan finish() &&;

 private:
  using Key = SamplePlan::AwayKey;
  void hold(const Key& key, ShardId shard);

  const size_t shards_;
  std::shared_ptr<GuardedSamples> plan_;
  std::map<Key, std::set<ShardId>> holders_;                   // of what is away, where not all do
  std::map<std::pair<ShardId, TrainerProcess>, Step> newest_;  // push that a shard holds
};

}  // namespace psd
