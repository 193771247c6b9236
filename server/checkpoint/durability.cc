#include "server/checkpoint/durability.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "server/checkpoint/replay.h"

namespace psd {

namespace {

/// A process that died may have left directory entries, in the folder and for the folder itself, that are
/// readable but not on disk. What this daemon resumes from must be durable.
Status syncFound(Env& env, const std::string& folder) {
  PSD_RETURN_IF_ERROR(env.syncFolder(folder));
  for (std::string path = folder; folderOf(path) != path; path = folderOf(path)) {
    // The parent may be inaccessible to this user, who then did not create the folder.
    static_cast<void>(env.syncFolder(folderOf(path)));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Durability>> Durability::open(Env& env, const DurabilityConfig& config,
                                                     std::shared_ptr<ByteBudget> pending,
                                                     Histogram* syncSeconds) {
  std::unique_ptr<Durability> durability(new Durability(env, config, std::move(pending), syncSeconds));
  if (!config.enabled()) return durability;
  const std::string& folder = config.path;
  PSD_ASSIGN_OR_RETURN(durability->folder_, LockedFolder::take(env, folder));
  PSD_RETURN_IF_ERROR(syncFound(env, folder));
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, folder, false));
  if (!numbers.empty()) durability->nextNumber_ = numbers.back() + 1;
  return durability;
}

Result<std::optional<Checkpoint>> Durability::find() {
  if (!config_.enabled()) return std::optional<Checkpoint>();
  if (config_.resume == "none") {
    PSD_RETURN_IF_ERROR(warnIgnoredContents());
    return std::optional<Checkpoint>();
  }
  const bool automatic = config_.resume == "auto";
  auto found = newestIn(automatic ? config_.path : config_.resume, automatic);
  if (found.ok()) return found;
  return Error{found.error().code,
               (automatic ? "durability.path: " : "durability.resume: ") + found.message()};
}

Result<std::optional<Checkpoint>> Durability::newestIn(const std::string& path, bool automatic) {
  PSD_ASSIGN_OR_RETURN(const bool isCheckpoint, env_.exists(path + "/" + std::string(kManifestName)));
  if (isCheckpoint) {
    PSD_ASSIGN_OR_RETURN(Checkpoint checkpoint, openCheckpoint(env_, path));
    return std::optional(std::move(checkpoint));
  }
  ownFolder_ = automatic;
  PSD_ASSIGN_OR_RETURN(NewestCheckpoint newest, newestCheckpoint(env_, path));
  for (const NewestCheckpoint::Damaged& damaged : newest.damaged) {
    spdlog::error("skipped a checkpoint: {}", damaged.why.message);
    if (automatic) damaged_.insert(damaged.number);
  }
  if (newest.checkpoint) {
    const bool hasLog = newest.checkpoint->manifest.logSegment != 0;
    if (automatic) PSD_RETURN_IF_ERROR(env_.syncFolder(newest.checkpoint->path));
    if (automatic && (hasLog || damagedMayHaveLog()))
      PSD_RETURN_IF_ERROR(checkNoNewerUpdates(*newest.checkpoint));
    return std::move(newest.checkpoint);
  }
  if (!newest.damaged.empty()) {
    return Error{ErrorCode::io, "no checkpoint in '" + path +
                                    "' is intact; durability.resume=none starts from scratch (" +
                                    newest.damaged.front().why.message + ")"};
  }
  if (!automatic) return Error{ErrorCode::io, "there is no checkpoint in '" + path + "'"};
  // The first update of a log follows its first checkpoint: without one, checkpoints were lost, or none could
  // be taken. A crash before the first checkpoint leaves segments without updates.
  PSD_ASSIGN_OR_RETURN(const LogFiles log, findLog(env_, path));
  if (!log.updatesIn.empty()) {
    return Error{ErrorCode::io, "'" + log.updatesIn + "' holds updates, but there is no checkpoint in '" +
                                    path +
                                    "' that they continue from; restore the checkpoints, move the folder "
                                    "away, or start from scratch with durability.resume=none"};
  }
  PSD_ASSIGN_OR_RETURN(const bool isDivided, env_.exists(path + "/partition-0"));
  if (isDivided) {
    return Error{ErrorCode::invalidArgument, "'" + path +
                                                 "' holds the output of psd repartition; "
                                                 "set durability.path to one of its folders, such as '" +
                                                 path + "/partition-0'"};
  }
  return std::optional<Checkpoint>();
}

Status Durability::warnIgnoredContents() const {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> checkpoints, listCheckpoints(env_, config_.path, true));
  PSD_ASSIGN_OR_RETURN(const LogFiles log, findLog(env_, config_.path));
  if (checkpoints.empty() && log.segments == 0) return {};
  spdlog::warn(
      "durability.resume=none starts from scratch: '{}' holds {} checkpoint(s) and {} log segment(s), "
      "which stay until new checkpoints replace them",
      config_.path, checkpoints.size(), log.segments);
  return {};
}

bool Durability::damagedMayHaveLog() const {
  return std::ranges::any_of(damaged_, [this](uint64_t number) {
    const auto manifest = readManifest(env_, checkpointPath(config_.path, number));
    return !manifest.ok() || manifest->logSegment != 0;
  });
}

Status Durability::checkNoNewerUpdates(const Checkpoint& checkpoint) const {
  const Manifest& manifest = checkpoint.manifest;
  PSD_ASSIGN_OR_RETURN(const auto other,
                       findForeignHistory(env_, config_.path, manifest.logHistory, manifest.logSegment));
  if (!other) return {};
  if (damaged_.empty()) {
    // A daemon died before it finished the checkpoint that they continue from. Until then the log counts as
    // broken.
    spdlog::warn("skipped updates that no checkpoint leads to, from '{}' on; none was acknowledged",
                 segmentPath(config_.path, *other));
    return {};
  }
  return {ErrorCode::io, "'" + segmentPath(config_.path, *other) +
                             "' holds updates, but there is no intact checkpoint that they continue from: '" +
                             checkpoint.path +
                             "' is older; restore the checkpoint, or resume without these updates with "
                             "durability.resume=" +
                             checkpoint.path};
}

void Durability::note(const Restored& restored, const std::string& path) const {
  for (const std::string& note : restored.notes) spdlog::warn("checkpoint '{}': {}", path, note);
}

Status Durability::restore(const Checkpoint& checkpoint, ParameterStore& store) {
  PSD_RETURN_IF_ERROR(checkModel(checkpoint, store));
  // A named checkpoint is restored as it is, without the log after it.
  SamplesReplay samples(checkpoint.manifest);
  if (ownFolder_ && checkpoint.manifest.logSegment != 0)
    return replayLog(checkpoint, store, std::move(samples));
  PSD_ASSIGN_OR_RETURN(const Restored restored, restoreStore(env_, checkpoint, store));
  note(restored, checkpoint.path);
  *samples_->lockExclusive() = std::move(samples).finish();
  return {};
}

Status Durability::replayLog(const Checkpoint& checkpoint, ParameterStore& store, SamplesReplay samples) {
  const Manifest& manifest = checkpoint.manifest;
  const bool direct = sameShape(manifest, store);
  std::unique_ptr<ParameterStore> shaped;
  if (direct) {
    PSD_ASSIGN_OR_RETURN(const Restored restored, restoreStore(env_, checkpoint, store));
    note(restored, checkpoint.path);
  } else {
    PSD_ASSIGN_OR_RETURN(shaped, openStore(env_, checkpoint));
  }
  Replayer replayer(direct ? store : *shaped, {}, &samples);
  PSD_ASSIGN_OR_RETURN(const LogEnd end, readLog(env_, config_.path, manifest.logHistory, manifest.logSegment,
                                                 [&](LogRecord record) { return replayer.apply(record); }));
  PSD_RETURN_IF_ERROR(cutTornTail(env_, config_.path, end));
  *samples_->lockExclusive() = std::move(samples).finish();
  // A last segment without a header yet held nothing.
  const bool unfinished = (end.torn && end.wholeBytes > 0) || replayer.unfinished() > 0;
  spdlog::info("replayed {} of {} updates in the log{}", replayer.applied(), replayer.updates(),
               unfinished ? "; dropped an unfinished one at its end, which was never acknowledged" : "");
  if (direct) {
    logEnd_ = end;
    logHistory_ = manifest.logHistory;
    return {};
  }
  CheckpointSource source;
  source.store = std::shared_ptr<ParameterStore>(std::move(shaped));
  source.groups = [&manifest] {
    std::vector<CheckpointSource::Group> groups;
    for (const ManifestGroup& group : manifest.groups) groups.push_back({group.policy});
    return groups;
  };
  source.samples = samples_;
  source.folder = folder_;
  source.damaged = damaged_;
  const uint64_t number = nextNumber_++;
  DurabilityConfig quiet = config_;
  quiet.everySeconds = 0;
  quiet.everyUpdates = 0;
  quiet.fullEvery = 1;
  PSD_RETURN_IF_ERROR(Checkpointer(env_, quiet, std::move(source), number).takeNow());
  PSD_ASSIGN_OR_RETURN(const Checkpoint replayed, openCheckpoint(env_, checkpointPath(config_.path, number)));
  PSD_ASSIGN_OR_RETURN(const Restored restored, restoreStore(env_, replayed, store));
  note(restored, replayed.path);
  return {};
}

std::shared_ptr<LogWriter> Durability::openLog(const ParameterStore& store) {
  SegmentHeader first;
  first.signature = store.model().signature();
  first.history = logEnd_ ? logHistory_ : drawId();
  first.firstRecord = logEnd_ ? logEnd_->nextRecord : 1;
  return LogWriter::open(env_, config_.path, first, config_.segmentBytes, pending_,
                         logEnd_ ? logEnd_->lastWrite : LastWrite(), syncSeconds_);
}

std::shared_ptr<Checkpointer> Durability::checkpointer() const {
  const std::lock_guard hold(mutex_);
  return checkpointer_;
}

std::shared_ptr<Checkpointer> Durability::setCheckpointer(std::shared_ptr<Checkpointer> checkpointer) {
  const std::lock_guard hold(mutex_);
  return std::exchange(checkpointer_, std::move(checkpointer));
}

Status Durability::begin(CheckpointSource source) {
  const std::lock_guard one(lifecycleMutex_);
  const bool needsBase = beginWith(std::move(source));
  return needsBase ? checkpointer()->takeNow() : Status();
}

Status Durability::replace(CheckpointSource source, const std::function<Status()>& change, Status& saved) {
  const std::lock_guard one(lifecycleMutex_);
  {
    const std::lock_guard uncopied(*checkpointMutex_);
    PSD_RETURN_IF_ERROR(change());
  }
  static_cast<void>(beginWith(std::move(source)));
  if (const auto saving = checkpointer()) saved = saving->takeNow();
  return {};
}

void Durability::beginAsync(CheckpointSource source) {
  const std::lock_guard one(lifecycleMutex_);
  if (saves(*source.store)) return;
  static_cast<void>(beginWith(std::move(source)));
  if (const auto saving = checkpointer()) saving->requestCheckpoint();
}

bool Durability::saves(const ParameterStore& store) const {
  const std::lock_guard hold(mutex_);
  return checkpointer_ && source_ && source_->store.get() == &store;
}

void Durability::stop() {
  const std::lock_guard one(lifecycleMutex_);
  setCheckpointer(nullptr);
  if (replicated_) replicated_->setDisk(nullptr);
  const std::lock_guard hold(mutex_);
  source_.reset();
  log_.reset();
}

Status Durability::flushLog() {
  std::shared_ptr<LogWriter> log;
  {
    const std::lock_guard hold(mutex_);
    log = log_;
  }
  return log ? log->flush() : Status(ErrorCode::notReady, "there is no log");
}

bool Durability::beginWith(CheckpointSource source) {
  source.samples = samples_;
  source.checkpointMutex = checkpointMutex_;
  if (replicated_) {
    replicated_->resetFollowers();
    const std::lock_guard hold(mutex_);
    source_ = source;
  }
  if (!config_.enabled() && !replicated_) return false;
  setCheckpointer(nullptr);  // stops the previous one, and with it the use of its log
  const bool needsBase = logs() && !logEnd_;
  if (logs()) {
    if (Status held = folder_->keep(); !held.ok()) spdlog::error("{}", held.message());
    source.logBytesBefore = logEnd_ ? logEnd_->bytes : 0;
    source.logRecordsBefore = logEnd_ ? logEnd_->records : 0;
    source.log = openLog(*source.store);
    // The store may keep the log for longer than this object holds the folder.
    source.log->setFolderCheck([folder = std::weak_ptr(folder_)] {
      const auto held = folder.lock();
      return held ? held->keep() : Status();
    });
    if (!needsBase) source.log->setBased();
    logEnd_.reset();
    const std::lock_guard hold(mutex_);
    log_ = source.log;
  }
  std::shared_ptr<UpdateLog> log = source.log;
  if (replicated_) {
    replicated_->setDisk(source.log);
    log = replicated_;
  }
  for (size_t i = 0; log && i < source.store->blockCount(); i++) source.store->block(i).setLog(log);
  source.store->buffers().setLog(log);
  if (!config_.enabled()) return false;
  source.folder = folder_;
  source.damaged = damaged_;
  source.beforeAnnounce = beforeAnnounce_;
  // If the folder cannot be read now, a later attempt skips numbers that exist already.
  const auto numbers = listCheckpoints(env_, config_.path, false);
  if (numbers.ok() && !numbers->empty()) nextNumber_ = std::max(nextNumber_, numbers->back() + 1);
  const std::lock_guard hold(mutex_);
  checkpointer_ = std::make_shared<Checkpointer>(env_, currentConfig_, std::move(source), nextNumber_);
  return needsBase;
}

Result<std::string> Durability::copyTo(Env& env, const std::string& folder) {
  std::optional<CheckpointSource> source;
  {
    const std::lock_guard hold(mutex_);
    source = source_;
  }
  if (!source) return Error{ErrorCode::notReady, "the model has no values yet"};
  return copyTo(env, folder, *std::move(source));
}

Result<std::string> Durability::copyTo(Env& env, const std::string& folder, CheckpointSource source) const {
  DurabilityConfig once;
  once.type = DurabilityConfig::Type::checkpoint;
  once.path = folder;
  once.everySeconds = 0;
  source.samples = samples_;
  source.checkpointMutex = checkpointMutex_;
  Checkpointer copier(env, once, std::move(source), 1);
  PSD_RETURN_IF_ERROR(copier.takeNow());
  const DurabilityStatus status = copier.status();
  if (!status.lastCheckpoint) return Error{ErrorCode::unavailable, "the copy was not finished"};
  return status.lastCheckpoint->path;
}

uint64_t Durability::assigned(const LoggedAssignment& assignment) const {
  if (replicated_) return replicated_->append(assignment);
  const std::lock_guard hold(mutex_);
  return log_ ? log_->append(assignment) : 0;
}

kj::Promise<void> Durability::whenAssignmentDurable(uint64_t assignment) const {
  if (replicated_) return replicated_->whenDurable(assignment);
  const std::lock_guard hold(mutex_);
  return log_ ? log_->whenDurable(assignment) : kj::Promise<void>(kj::READY_NOW);
}

Status Durability::finish() {
  const std::lock_guard one(lifecycleMutex_);
  const auto saving = checkpointer();
  return saving ? saving->finish() : Status();
}

Result<std::optional<Departed>> Durability::departed() const {
  if (!config_.enabled() || config_.resume != "auto") return std::optional<Departed>();
  PSD_ASSIGN_OR_RETURN(const std::optional<std::string> text, readDepartedText(env_, config_.path));
  if (!text) return std::optional<Departed>();
  auto departed = parseDeparted(*text, departedPath(config_.path));
  if (departed.ok()) return std::optional(*std::move(departed));
  spdlog::error("the finished trainers of the previous daemon are unknown: {}", departed.message());
  return std::optional<Departed>();
}

Status Durability::saveDepartedRanks(const Departed& departed) {
  return config_.enabled() ? writeDeparted(env_, config_.path, departed) : Status();
}

Status Durability::clearDepartedRanks() {
  return config_.enabled() ? removeDeparted(env_, config_.path) : Status();
}

Result<std::string> Durability::checkpointNow() {
  const auto saving = checkpointer();
  if (!saving) return Error{ErrorCode::notReady, "there is nothing to save yet"};
  PSD_RETURN_IF_ERROR(saving->takeNow());
  const DurabilityStatus status = saving->status();
  if (!status.lastCheckpoint) return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
  return status.lastCheckpoint->path;
}

Result<NewestPart> Durability::newestPart() {
  const std::lock_guard alone(*checkpointMutex_);  // none is removed meanwhile
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env_, config_.path, true));
  if (numbers.empty()) return Error{ErrorCode::notReady, "there is no checkpoint yet"};
  const std::string path = checkpointPath(config_.path, numbers.back());
  PSD_ASSIGN_OR_RETURN(const Manifest manifest, readManifest(env_, path));
  NewestPart newest{manifest.model.partition, {manifest.number}, manifest.logSegment != 0, {}};
  newest.ref.version = blocksOf(manifest).front()->version.value;
  PSD_ASSIGN_OR_RETURN(newest.ref.crc, manifestCrc(env_, path));
  PSD_ASSIGN_OR_RETURN(newest.whole, readWhole(env_, config_.path));
  return newest;
}

Status Durability::recordWhole(const WholeCheckpoint& whole) {
  const std::lock_guard alone(*checkpointMutex_);  // none is removed meanwhile
  const auto bad = [](std::string why) { return Status(ErrorCode::invalidArgument, std::move(why)); };
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env_, config_.path, true));
  if (numbers.empty()) return bad("there is no checkpoint yet");
  PSD_ASSIGN_OR_RETURN(const Manifest newest,
                       readManifest(env_, checkpointPath(config_.path, numbers.back())));
  const Partition& own = newest.model.partition;
  if (whole.parts.size() != own.of) {
    return bad(fmt::format("the checkpoint of the whole model has {} parts, this daemon is one of {}",
                           whole.parts.size(), own.of));
  }
  const CheckpointRef& part = whole.parts[own.index];
  const std::string path = checkpointPath(config_.path, part.number);
  const bool there = std::ranges::binary_search(numbers, part.number);
  if (!there) {
    return {
        ErrorCode::unavailable,
        fmt::format("checkpoint {} no longer exists; a larger durability.keep keeps it longer", part.number)};
  }
  PSD_ASSIGN_OR_RETURN(const uint32_t crc, manifestCrc(env_, path));
  if (crc != part.crc) {
    return {ErrorCode::unavailable, fmt::format("checkpoint {} is not the one that is named", part.number)};
  }
  PSD_ASSIGN_OR_RETURN(const Manifest manifest, readManifest(env_, path));
  if (manifest.logSegment != 0) return bad("with durability.type log a daemon resumes from the log's end");
  return writeWhole(env_, config_.path, whole);
}

void Durability::follow(const DurabilityConfig& config) {
  const std::lock_guard hold(mutex_);
  currentConfig_.everySeconds = config.everySeconds;
  currentConfig_.everyUpdates = config.everyUpdates;
  currentConfig_.everyBytes = config.everyBytes;
  if (checkpointer_) checkpointer_->follow(currentConfig_);
}

DurabilityStatus Durability::status() const {
  const auto saving = checkpointer();
  DurabilityStatus out = saving ? saving->status() : DurabilityStatus();
  out.type = durabilityName(config_.type);
  out.path = config_.path;
  const std::lock_guard hold(mutex_);
  if (config_.enabled()) out.checkpointIntervalSeconds = currentConfig_.everySeconds;
  return out;
}

}  // namespace psd
