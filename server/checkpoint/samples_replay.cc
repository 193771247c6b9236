#include "server/checkpoint/samples_replay.h"

#include <algorithm>
#include <vector>

namespace psd {
namespace {

/// Whether all elements of the shard have the assignment's gradient. Without an incarnation, a trainer's
/// processes cannot be distinguished.
bool shardHolds(const ManifestBlock& shard, const SampleAssignment& assignment) {
  const auto pushes = pushesOf(shard.pushed, assignment.process.rank, assignment.process.incarnation);
  return assignment.process.incarnation != 0 && !pushes.empty() &&
         std::all_of(pushes.begin(), pushes.end(),
                     [&](const AppliedPush& push) { return holds(push, assignment.step); });
}

}  // namespace

SamplesReplay::SamplesReplay(const Manifest& manifest, std::shared_ptr<GuardedSamples> plan)
    : shards_(manifest.shards.size() + manifest.rowShards.size()), plan_(std::move(plan)) {
  *plan_->lockExclusive() = manifest.samples
                                ? SamplePlan::restore(*manifest.samples).value()  // valid: parseManifest()
                                : SamplePlan();
  if (!manifest.samples) return;
  for (const ManifestBlock* block : blocksOf(manifest)) {
    for (const PushedRange& range : block->pushed.ranges()) {
      for (const AppliedPush& push : range.pushes) {
        // A step that some elements of the shard lack may be pushed again.
        Step newest = push.step;
        for (const AppliedPush& other : pushesOf(block->pushed, push.rank, push.incarnation)) {
          newest = std::min(newest, other.step);
        }
        newest_[{block->range.id, {push.rank, push.incarnation}}] = newest;
      }
    }
  }
  for (const SavedAssignment& assignment : manifest.samples->underWay) {
    for (const ManifestBlock* block : blocksOf(manifest)) {
      if (block->range.id.value >= assignment.doubtful || shardHolds(*block, assignment)) {
        hold({assignment.process, assignment.step}, block->range.id);
      }
    }
  }
}

void SamplesReplay::hold(const Key& key, ShardId shard) {
  auto plan = plan_->lockExclusive();
  if (!plan->away().contains(key)) return;
  std::set<ShardId>& holders = holders_[key];
  holders.insert(shard);
  if (holders.size() < shards_) return;
  plan->doneAway(key);
  holders_.erase(key);
}

Status SamplesReplay::assign(const LoggedAssignment& logged) {
  // Samples left over from an earlier plan are void.
  auto plan = plan_->lockExclusive();
  if (logged.plan.number < plan->terms().number) return {};
  if (logged.plan.number > plan->terms().number) {
    PSD_RETURN_IF_ERROR(plan->begin(logged.plan));
    holders_.clear();
  }
  return plan->replayAssignment(logged.assignment);
}

void SamplesReplay::update(ShardId shard, std::span<const UpdateSource> sources) {
  for (const UpdateSource& source : sources) {
    if (source.isShare()) continue;
    const TrainerProcess process{source.rank, source.incarnation};
    Step& newest = newest_[{shard, process}];
    newest = std::max(newest, source.step);
    hold({process, source.step}, shard);
  }
}

SamplePlan SamplesReplay::finish() && {
  // A shard that lacks a push but has a later one of the same trainer dropped it.
  SamplePlan plan = *plan_->lockExclusive();
  std::vector<Key> over;
  for (const auto& [key, range] : plan.away()) {
    const auto& [process, step] = key;
    const auto holders = holders_.find(key);
    bool decided = true;
    for (uint32_t i = 0; i < shards_ && decided; i++) {
      const auto newest = newest_.find({ShardId{i}, process});
      const bool held = holders != holders_.end() && holders->second.contains(ShardId{i});
      decided = held || (newest != newest_.end() && newest->second > step);
    }
    if (decided) over.push_back(key);
  }
  for (const Key& key : over) {
    if (holders_.contains(key)) {
      plan.doneAway(key);
    } else {
      plan.returnAway(key);
    }
  }
  return plan;
}

}  // namespace psd
