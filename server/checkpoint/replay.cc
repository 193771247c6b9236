#include "server/checkpoint/replay.h"

#include <algorithm>

#include "server/optimizer/optimizer_config.h"
#include "server/store/await.h"
#include "server/store/backend.h"

namespace psd {
namespace {

/// The highest version of any shard.
Version newestIn(const Manifest& manifest) {
  Version newest;
  for (const ManifestBlock* block : blocksOf(manifest)) newest = std::max(newest, block->version);
  return newest;
}

/// A block of the checkpoint that is beyond `until`.
std::optional<size_t> beyond(const Manifest& manifest, const ReplayEnd& until) {
  const auto blocks = blocksOf(manifest);
  for (size_t i = 0; i < blocks.size(); i++) {
    if (const auto end = until.of(i); end && blocks[i]->version > *end) return i;
  }
  return {};
}

/// The newest intact checkpoint in which no shard is beyond `until`.
Result<Checkpoint> checkpointBefore(Env& env, const std::string& folder, const ReplayEnd& until) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, folder, true));
  Error why{ErrorCode::io, "there is no whole checkpoint in '" + folder + "'"};
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    auto opened = openCheckpoint(env, checkpointPath(folder, *number));
    const auto block = opened.ok() ? beyond(opened->manifest, until) : std::nullopt;
    if (opened.ok() && !block) return opened;
    if (opened.ok()) {
      why = {ErrorCode::invalidArgument, "every checkpoint left in '" + folder + "' is beyond update " +
                                             std::to_string(until.of(*block)->value) +
                                             "; the earliest available is " +
                                             std::to_string(newestIn(opened->manifest).value)};
    } else {
      why = opened.error();
    }
  }
  return why;
}

Error badRecord(const LogRecord& record, const std::string& why) {
  return {ErrorCode::io, "record " + std::to_string(record.number) + " of the log: " + why};
}

/// Whether a replay reached `until`. Damage after that is ignored.
Status checkReached(const Status& read, const ReplayEnd& until, size_t blocks,
                    const std::function<uint64_t(uint32_t block)>& reached) {
  if (until.open()) return read;
  for (uint32_t block = 0; block < blocks; block++) {
    const std::optional<Version> end = until.of(block);
    if (!end || reached(block) == end->value) continue;
    PSD_RETURN_IF_ERROR(read);
    return {ErrorCode::invalidArgument, "update " + std::to_string(end->value) + " of shard " +
                                            std::to_string(block) + " is not in the log, which ends at " +
                                            std::to_string(reached(block))};
  }
  return {};
}

}  // namespace

Status Replayer::apply(LogRecord& record) {
  if (record.assignment) {
    const Status assigned = samples_ ? samples_->assign(*record.assignment) : Status();
    return assigned.ok() ? Status() : badRecord(record, assigned.message());
  }
  if (record.buffers) {
    if (const Status named = record.buffers->checkNames(store_.model()); !named.ok())
      return badRecord(record, named.message());
    store_.buffers().set(record.buffers);
    return {};
  }
  PSD_RETURN_IF_ERROR(fits(record));
  std::vector<LogRecord>& held = pendingParts_[store_.block(record.shard.value).group()];
  const auto before = std::find_if(held.begin(), held.end(),
                                   [&](const LogRecord& part) { return part.shard == record.shard; });
  if (before != held.end()) {
    // The missing parts of the held update never arrive. If this shard's numbering continues, the held part
    // is in the model, as the update failed at the next shard. If this record has the same number, it is not.
    const bool wentOn = record.scalars.number > before->scalars.number;
    std::vector<LogRecord> parts = std::exchange(held, {});
    if (wentOn) PSD_RETURN_IF_ERROR(applyAll(std::move(parts)));
  }
  const UpdatePart part = record.part;
  if (part == UpdatePart::whole) return run(record);
  held.push_back(std::move(record));
  return part == UpdatePart::last ? applyAll(std::exchange(held, {})) : Status();
}

Status Replayer::fits(const LogRecord& record) const {
  const uint32_t number = record.shard.value;
  if (number >= store_.blockCount()) {
    return badRecord(record, "is of shard " + std::to_string(number) + ", which the model does not have");
  }
  const bool dense = number < store_.shardCount();
  if (dense == record.ofRows) return badRecord(record, "is for the other kind of shard");
  if (dense) {
    const bool whole = record.elements == store_.shard(number).range().count;
    return whole ? Status() : badRecord(record, "does not fit its shard");
  }
  const RowShard& shard = store_.rowShard(number - store_.shardCount());
  if (const Status rows = shard.check(record.rows()); !rows.ok()) return badRecord(record, rows.message());
  if (const Status beside = shard.checkSideChanges(record.beside()); !beside.ok())
    return badRecord(record, beside.message());
  const bool whole = record.elements == shard.valueCount(record.runs);
  return whole ? Status() : badRecord(record, "does not have a gradient for each of its rows");
}

Status Replayer::applyAll(std::vector<LogRecord> records) {
  std::optional<ShardLock::Guard> together;
  if (scope_) {
    const uint32_t group = store_.block(records.front().shard.value).group();
    if (const auto& lock = groupLocks_[group]) together.emplace(lock->acquire().wait(*scope_));
  }
  for (const LogRecord& record : records) PSD_RETURN_IF_ERROR(run(record));
  return {};
}

uint64_t Replayer::unfinished() const {
  uint64_t count = 0;
  for (const auto& [group, parts] : pendingParts_) count += parts.size();
  return count;
}

Status Replayer::run(const LogRecord& record) {
  updates_++;
  PSD_RETURN_IF_ERROR(runNew(record));
  if (samples_) samples_->update(record.shard, record.sources);
  return {};
}

Status Replayer::runNew(const LogRecord& record) {
  const uint64_t at = reached(record.shard.value);
  if (record.scalars.number <= at) return {};
  const std::optional<Version> end = until_.of(record.shard.value);
  if (end && record.scalars.number > end->value) return {};
  if (record.scalars.number != at + 1) {
    return badRecord(record, "is update " + std::to_string(record.scalars.number) + " of shard " +
                                 std::to_string(record.shard.value) + ", which is at " + std::to_string(at));
  }
  if (choice_) {
    PSD_ASSIGN_OR_RETURN(const bool taken, choice_->takes(record));
    if (!taken) {
      passed_[record.shard.value]++;
      leftOut_++;
      return {};
    }
  }
  return make(record);
}

uint64_t Replayer::reached(uint32_t block) const {
  return store_.block(block).version().value + passed_[block];
}

Status Replayer::make(const LogRecord& record) {
  ParameterBlock& block = store_.block(record.shard.value);
  std::optional<ShardLock::Guard> guard;
  if (scope_) guard.emplace(block.lock().acquire().wait(*scope_));
  const Gradient gradient = record.gradient();
  for (size_t i = 0; record.scalars.pushed && i < record.scalars.pushed->sets.size(); i++) {
    const Status fits = block.optimizer().checkHyperparameters(record.scalars.pushed->sets[i]);
    if (!fits.ok()) return badRecord(record, fits.message());
  }
  UpdateScalars scalars = record.scalars;
  scalars.number = block.version().value + 1;
  scalars.before = block.stateSince().value;
  if (record.ofRows) {
    PSD_RETURN_IF_ERROR(
        applyRows(store_.rowShard(record.shard.value - store_.shardCount()), record, scalars));
  } else {
    Shard& shard = store_.shard(record.shard.value);
    if (watcher_) {
      PSD_ASSIGN_OR_RETURN(const auto weights, weightsOf(shard));
      watcher_->before(record.shard.value, weights);
    }
    PSD_RETURN_IF_ERROR(apply(shard, record, gradient, scalars));
    if (watcher_) {
      PSD_ASSIGN_OR_RETURN(const auto weights, weightsOf(shard));
      watcher_->after(record, scalars.number, weights);
    }
  }
  block.beginUpdate();
  scalars.before = record.scalars.before;
  AppliedUpdate made{scalars, gradient, record.sources, record.part};
  if (record.ofRows) {
    made.rows = record.rows();
    made.beside = record.beside();
  }
  block.endUpdate(made, {});
  applied_++;
  return {};
}

Result<std::span<const float>> Replayer::weightsOf(Shard& shard) {
  PSD_ASSIGN_OR_RETURN(const ReadView view, await<Result<ReadView>>([&](auto done) {
                         shard.storage().read(*lanes_[shard.device()], 0, shard.range().count, done);
                       }));
  return view.values;  // stays valid: the store is in host memory
}

Status Replayer::apply(Shard& shard, const LogRecord& record, const Gradient& gradient,
                       const UpdateScalars& scalars) {
  const auto applyTo = [&](uint64_t offset, const Gradient& part) {
    return await<Status>(
        [&](auto done) { shard.storage().apply(*lanes_[shard.device()], offset, part, scalars, done); });
  };
  // Only the update of a single push can be in some elements already.
  if (!shard.divided() || record.part != UpdatePart::whole || record.sources.size() != 1) {
    return applyTo(0, gradient);
  }
  std::vector<float> values(gradient.size());
  gradient.copyTo(0, values);
  for (const PushedRange& range : shard.pushed().lacking(record.sources.front())) {
    PSD_RETURN_IF_ERROR(
        applyTo(range.begin, std::span<const float>(values).subspan(range.begin, range.count)));
  }
  return {};
}

Status Replayer::applyRows(RowShard& shard, const LogRecord& record, const UpdateScalars& scalars) {
  const StagedRows all{record.rows(), record.gradient().values(), nullptr};
  // Only the update of a single push can be in some rows already.
  const bool divided = shard.divided() && record.part == UpdatePart::whole && record.sources.size() == 1;
  if (!divided) return shard.replay(all, record.beside(), scalars);
  const StagedRows lacking = shard.rowsIn(all, shard.pushed().lacking(record.sources.front()));
  return shard.replay(lacking, record.beside(), scalars);
}

bool sameShape(const Manifest& manifest, const ParameterStore& store) {
  if (manifest.shards.size() != store.shardCount() || manifest.groups.size() != store.groupCount())
    return false;
  if (manifest.rowShards.size() != store.rowShardCount()) return false;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    if (manifest.rowShards[i].range != store.rowShard(i).range()) return false;
    for (const RowShard::Table& table : store.rowShard(i).tables()) {
      if (manifest.rowSteps[table.index] != table.rowSteps) return false;
    }
  }
  for (size_t i = 0; i < store.shardCount(); i++) {
    if (manifest.shards[i].range != store.shard(i).range()) return false;
  }
  for (uint32_t group = 0; group < store.groupCount(); group++) {
    const Optimizer& saved = manifest.groups[group].optimizer;
    if (writeOptimizer(saved) != writeOptimizer(store.optimizer(group))) return false;
  }
  return true;
}

Result<std::unique_ptr<ParameterStore>> makeStoreOf(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest;
  const PlacedCheckpoint all{&checkpoint};
  const auto shards = static_cast<uint32_t>(manifest.shards.size());
  PSD_ASSIGN_OR_RETURN(auto store, ParameterStore::create(manifest.model, shards, {makeCpuBackend()},
                                                          groupsOf({&all, 1}, manifest.model, 0)));
  if (sameShape(manifest, *store)) return store;
  return Error{ErrorCode::internal, "'" + checkpoint.path + "' was sharded by a different rule"};
}

Result<std::unique_ptr<ParameterStore>> openStore(Env& env, const Checkpoint& checkpoint) {
  PSD_ASSIGN_OR_RETURN(auto store, makeStoreOf(checkpoint));
  auto restored = restoreStore(env, checkpoint, *store);
  if (!restored.ok()) return restored.error();
  return store;
}

Result<std::unique_ptr<ParameterStore>> rebuild(Env& env, const std::string& folder, const ReplayEnd& until) {
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, checkpointBefore(env, folder, until));
  PSD_ASSIGN_OR_RETURN(auto store, openStore(env, checkpoint));
  const Manifest& manifest = checkpoint.manifest;
  Status read;
  if (manifest.logSegment != 0) {
    Replayer replayer(*store, until);
    read = readLog(env, folder, manifest.logHistory, manifest.logSegment, [&](LogRecord record) {
             return replayer.apply(record);
           }).status();
  }
  const auto version = [&](uint32_t block) { return store->block(block).version().value; };
  PSD_RETURN_IF_ERROR(checkReached(read, until, store->blockCount(), version));
  return store;
}

namespace {

std::vector<std::string> optimizersOf(const Manifest& manifest) {
  std::vector<std::string> texts;
  for (const ManifestGroup& group : manifest.groups) texts.push_back(writeOptimizer(group.optimizer).dump());
  return texts;
}

/// The oldest intact checkpoint from which the log continues to `newest` with the same optimizers.
Checkpoint oldestBefore(Env& env, const std::string& folder, Checkpoint newest) {
  const auto numbers = listCheckpoints(env, folder, true);
  if (!numbers.ok()) return newest;
  const std::vector<std::string> rules = optimizersOf(newest.manifest);
  for (auto number = numbers->rbegin(); number != numbers->rend(); ++number) {
    if (*number >= newest.manifest.number) continue;
    auto opened = openCheckpoint(env, checkpointPath(folder, *number));
    if (!opened.ok()) continue;
    const Manifest& manifest = opened->manifest;
    if (manifest.logSegment == 0 || manifest.logHistory != newest.manifest.logHistory) break;
    if (optimizersOf(manifest) != rules) break;
    newest = *std::move(opened);
  }
  return newest;
}

}  // namespace

Result<CounterfactualModel> rebuildCounterfactual(
    Env& env, const std::string& folder, std::optional<Version> until, ReplayChoice choice,
    const std::function<ReplayWatcher*(const ParameterStore& store)>& makeWatcher) {
  PSD_ASSIGN_OR_RETURN(Checkpoint newest, checkpointBefore(env, folder, until));
  if (newest.manifest.logSegment == 0) {
    return Error{
        ErrorCode::invalidArgument,
        "'" + folder + "' has checkpoints without a log; expected the folder of durability.type log"};
  }
  const Checkpoint first = oldestBefore(env, folder, std::move(newest));
  CounterfactualModel model;
  model.checkpoint = first.manifest.number;
  model.since = newestIn(first.manifest);
  PSD_ASSIGN_OR_RETURN(model.store, openStore(env, first));
  Replayer replayer(*model.store, until);
  replayer.choose(&choice, makeWatcher ? makeWatcher(*model.store) : nullptr);
  const auto replay = [&](LogRecord record) { return replayer.apply(record); };
  const Status read =
      readLog(env, folder, first.manifest.logHistory, first.manifest.logSegment, replay).status();
  const auto reached = [&](uint32_t block) { return replayer.reached(block); };
  PSD_RETURN_IF_ERROR(checkReached(read, until, model.store->blockCount(), reached));
  PSD_RETURN_IF_ERROR(choice.checkSeen());
  model.applied = replayer.applied();
  model.leftOut = replayer.leftOut();
  return model;
}

}  // namespace psd
