#include "server/checkpoint/saved_partitions.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/plan/model_partitions.h"
#include "common/text/text.h"
#include "server/checkpoint/replay.h"
#include "server/checkpoint/store_at_rest.h"

namespace psd {
namespace {

Error wrong(std::string message) { return {ErrorCode::invalidArgument, std::move(message)}; }

const Partition& partitionOf(const SavedPartition& part) { return part.checkpoint.manifest.model.partition; }

/// The rules that must match in all partitions of a run, because they define the meaning of optimizer state.
std::string rulesOf(const Manifest& manifest) {
  std::vector<std::string> rules;
  for (const ManifestGroup& group : manifest.groups) {
    rules.push_back(fmt::format("{} with {}", group.policy, group.optimizer.name()));
  }
  for (size_t i = 0; i < manifest.rowSteps.size(); i++) {
    if (!manifest.rowSteps[i])
      rules.push_back(fmt::format("row_steps false for '{}'", manifest.model.tables[i].name));
  }
  return joined(rules, ", ");
}

/// An Error if a checkpoint is of another model or partition than the newest one in its folder, by which the
/// partitions were merged.
Status checkSameModel(const Checkpoint& named, const Checkpoint& newest) {
  const ModelSpec &one = named.manifest.model, &other = newest.manifest.model;
  if (one.name == other.name && one.signature() == other.signature()) return {};
  const std::string why = one.name != other.name
                              ? fmt::format("'{}' and '{}'", printable(one.name), printable(other.name))
                              : describeDifference(one, "the first", other, "the second");
  return wrong(fmt::format("{}, of the whole model, and {} are of different models: {}",
                           quotedPath(named.path), quotedPath(newest.path), why));
}

/// Range of a rank's pushes over all shards: the newest step that all have, and the newest that any has.
struct Reach {
  Step least{std::numeric_limits<uint64_t>::max()}, most;
};

}  // namespace

Result<SavedPartitions> SavedPartitions::take(Env& env, const std::vector<std::string>& folders,
                                              bool together) {
  SavedPartitions saved(env);
  for (const std::string& folder : folders) PSD_RETURN_IF_ERROR(saved.find(folder));
  PSD_RETURN_IF_ERROR(saved.assemble());
  if (together) PSD_RETURN_IF_ERROR(saved.useWholeCheckpoint());
  return saved;
}

Status SavedPartitions::useWholeCheckpoint() {
  const std::string& lead = parts_.front().folder;
  PSD_ASSIGN_OR_RETURN(const std::optional<WholeCheckpoint> whole, readWhole(*env_, lead));
  if (!whole || whole->parts.size() != parts_.size()) {
    return wrong(quotedPath(lead) +
                 " names no checkpoint of the whole model; psd checkpoint of several daemons makes one, but "
                 "not if the daemons keep a log: omit --whole then");
  }
  for (size_t i = 0; i < parts_.size(); i++) {
    SavedPartition& part = parts_[i];
    const std::string path = checkpointPath(part.folder, whole->parts[i].number);
    PSD_ASSIGN_OR_RETURN(const bool there, env_->exists(path));
    const auto crc = there ? manifestCrc(*env_, path) : Result<uint32_t>(0);
    if (!there || !crc.ok() || *crc != whole->parts[i].crc) {
      return {ErrorCode::io, fmt::format("{} is missing, or not the one that {} names for the whole model",
                                         quotedPath(path), quotedPath(lead))};
    }
    PSD_ASSIGN_OR_RETURN(Checkpoint named, openCheckpoint(*env_, path));
    PSD_RETURN_IF_ERROR(checkSameModel(named, part.checkpoint));
    part.checkpoint = std::move(named);
    part.logged = false;
  }
  return checkRules();
}

Status SavedPartitions::find(const std::string& folder) {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;  // the checkpoint determines whether there is a log
  config.path = folder;
  SavedPartition part;
  part.folder = folder;
  PSD_ASSIGN_OR_RETURN(part.durability, Durability::open(*env_, config));
  PSD_ASSIGN_OR_RETURN(std::optional<Checkpoint> found, part.durability->find());
  if (!found) return {ErrorCode::io, "there is no whole checkpoint in " + quotedPath(folder)};
  part.checkpoint = *std::move(found);
  part.logged = part.checkpoint.manifest.logSegment != 0;
  parts_.push_back(std::move(part));
  return {};
}

Status SavedPartitions::checkNumbers() const {
  const uint32_t of = partitionOf(parts_.front()).of;
  for (const SavedPartition& part : parts_) {
    if (partitionOf(part).of == of) continue;
    return wrong(fmt::format("{} is of {}, and {} of {}: they are not of the same run",
                             quotedPath(parts_.front().folder), partitionOf(parts_.front()).toString(),
                             quotedPath(part.folder), partitionOf(part).toString()));
  }
  for (size_t i = 0; i < parts_.size(); i++) {
    const uint32_t index = partitionOf(parts_[i]).index;
    if (index == i) continue;
    if (index > i) {
      return wrong(
          fmt::format("the folder of partition {} of {} is missing; pass those of all daemons", i, of));
    }
    return wrong(fmt::format("{} and {} are both of {}", quotedPath(parts_[i - 1].folder),
                             quotedPath(parts_[i].folder), partitionOf(parts_[i]).toString()));
  }
  if (parts_.size() == of) return {};
  return wrong(fmt::format("the folder of partition {} of {} is missing; pass those of all daemons",
                           parts_.size(), of));
}

Status SavedPartitions::checkRules() const {
  const SavedPartition& lead = parts_.front();
  const std::string rules = rulesOf(lead.checkpoint.manifest);
  for (const SavedPartition& part : parts_) {
    const std::string others = rulesOf(part.checkpoint.manifest);
    if (others == rules) continue;
    return wrong(fmt::format("{} and {} are of different runs: the one has {}, the other {}",
                             quotedPath(lead.folder), quotedPath(part.folder), rules, others));
  }
  return {};
}

Status SavedPartitions::assemble() {
  std::ranges::sort(parts_, {}, [](const SavedPartition& part) { return partitionOf(part).index; });
  PSD_RETURN_IF_ERROR(checkNumbers());
  const SavedPartition& lead = parts_.front();
  std::vector<ModelSpec> specs;
  for (const SavedPartition& part : parts_) specs.push_back(part.checkpoint.manifest.model);
  const auto other = [&](const SavedPartition& part, const std::string& why) {
    return wrong(fmt::format("{} and {} are of different models: {}", quotedPath(lead.folder),
                             quotedPath(part.folder), why));
  };
  for (size_t i = 1; i < specs.size(); i++) {
    if (specs[i].name != specs[0].name) {
      return other(parts_[i],
                   fmt::format("'{}' and '{}'", printable(specs[0].name), printable(specs[i].name)));
    }
  }
  auto whole = joinPartitions(specs);
  if (!whole.ok()) return wrong("the folders are of different models: " + whole.message());
  model_ = *std::move(whole);
  PSD_ASSIGN_OR_RETURN(const auto partitions, partitionModel(model_, partitionOf(lead).of));
  for (size_t i = 0; i < parts_.size(); i++) {
    if (partitions[i].spec.signature() != specs[i].signature()) {
      return other(parts_[i], "the model of all folders together would be partitioned at other places");
    }
    parts_[i].begin = partitions[i].begin;
  }
  return checkRules();
}

Status SavedPartitions::replayLog(SavedPartition& part, const std::string& scratch) {
  const Manifest& manifest = part.checkpoint.manifest;
  const uint64_t number = manifest.model.partition.index + 1;
  PSD_ASSIGN_OR_RETURN(const auto store, makeStoreOf(part.checkpoint));
  PSD_RETURN_IF_ERROR(part.durability->restore(part.checkpoint, *store));
  PSD_RETURN_IF_ERROR(
      saveAtRest(*env_, scratch, number, *store, manifest.groups, manifest.consistency, std::nullopt));
  PSD_ASSIGN_OR_RETURN(part.checkpoint, openCheckpoint(*env_, checkpointPath(scratch, number)));
  return {};
}

Status SavedPartitions::returnTo(SavedMoment moment) {
  if (!model_.tables.empty()) {
    return wrong(
        "the model has embedding tables, whose rows are in no version: use psd checkpoint and --whole");
  }
  moment_ = std::move(moment);
  return {};
}

Status SavedPartitions::rebuildAt(const SavedMoment& moment, SavedPartition& part,
                                  const std::string& scratch) {
  const Manifest& manifest = part.checkpoint.manifest;
  const uint32_t index = manifest.model.partition.index;
  const auto failed = [&part](const Error& error) {
    return Status(error.code, quotedPath(part.folder) + ": " + error.message);
  };
  const auto store = rebuild(*env_, part.folder, ReplayEnd(moment.ends[index]));
  if (!store.ok()) return failed(store.error());
  if (const Status same = moment.check(index, **store); !same.ok()) return failed(same.error());
  PSD_RETURN_IF_ERROR(
      saveAtRest(*env_, scratch, index + 1, **store, manifest.groups, manifest.consistency, std::nullopt));
  PSD_ASSIGN_OR_RETURN(part.checkpoint, openCheckpoint(*env_, checkpointPath(scratch, index + 1)));
  return {};
}

SamplePlan SavedPartitions::plan() const {
  const SavedPartition& lead = parts_.front();
  if (lead.logged) return *lead.durability->samples()->lockExclusive();
  return SamplesReplay(lead.checkpoint.manifest).finish();
}

Status SavedPartitions::addDeparted(Outcome& outcome) const {
  Departed all;
  std::set<Rank> any;
  for (const SavedPartition& part : parts_) {
    PSD_ASSIGN_OR_RETURN(const std::optional<Departed> seen, part.durability->departed());
    const Departed gone = seen.value_or(Departed());
    any.insert(gone.ranks.begin(), gone.ranks.end());
    if (&part == &parts_.front()) all = gone;
    if (gone.worldSize != all.worldSize) all.ranks.clear();
    std::erase_if(all.ranks, [&](Rank rank) { return !gone.ranks.contains(rank); });
  }
  if (!all.ranks.empty()) outcome.departed = all;
  for (const Rank rank : any) {
    if (all.ranks.contains(rank)) continue;
    outcome.notes.push_back(fmt::format(
        "rank {} finished according to some daemons, not all: with exit_when_done they wait for it",
        rank.value));
  }
  return {};
}

void SavedPartitions::noteUnevenPushes(Outcome& outcome) const {
  std::map<Rank, Reach> reaches;
  const auto eachRange = [this](const auto& visit) {
    for (const SavedPartition& part : parts_) {
      for (const ManifestBlock* block : blocksOf(part.checkpoint.manifest)) {
        for (const PushedRange& range : block->pushed.ranges()) visit(range);
      }
    }
  };
  eachRange([&](const PushedRange& range) {
    for (const AppliedPush& push : range.pushes) {
      Reach& reach = reaches[push.rank];
      reach.most = std::max(reach.most, push.step);
    }
  });
  eachRange([&](const PushedRange& range) {
    for (auto& [rank, reach] : reaches) {
      const auto push = std::ranges::find(range.pushes, rank, &AppliedPush::rank);
      reach.least = std::min(reach.least, push == range.pushes.end() ? Step{0} : push->step);
    }
  });
  for (const auto& [rank, reach] : reaches) {
    if (reach.least == reach.most) continue;
    outcome.notes.push_back(fmt::format(
        "of rank {} some shards have the pushes up to step {}, others up to step {}; this remains so",
        rank.value, reach.most.value, reach.least.value));
  }
}

Result<SavedPartitions::Outcome> SavedPartitions::finish(const std::string& scratch) {
  Outcome outcome;
  for (SavedPartition& part : parts_) {
    if (part.checkpoint.manifest.consistency == Consistency::live) outcome.consistency = Consistency::live;
    if (moment_) {
      PSD_RETURN_IF_ERROR(rebuildAt(*moment_, part, scratch));
    } else if (part.logged) {
      PSD_RETURN_IF_ERROR(replayLog(part, scratch));
    }
  }
  for (const SavedPartition& part : parts_) outcome.checkpoints.push_back({&part.checkpoint, part.begin});
  if (moment_) {
    outcome.notes.emplace_back("the assignment of samples and the ranks that have finished are not kept");
    noteUnevenPushes(outcome);
    return outcome;
  }
  SamplePlan samples = plan();
  if (const uint64_t underWay = samples.underWayCount(); underWay > 0) {
    outcome.notes.push_back(fmt::format("{} samples of unfinished assignments are assigned again", underWay));
  }
  samples.returnAllAway();
  if (samples.begun()) outcome.samples = samples.saved();
  noteUnevenPushes(outcome);
  PSD_RETURN_IF_ERROR(addDeparted(outcome));
  return outcome;
}

}  // namespace psd
