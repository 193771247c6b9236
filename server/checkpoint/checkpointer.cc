#include "server/checkpoint/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <kj/async.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "common/text/quantity.h"
#include "server/checkpoint/whole.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPoll{50};  // polling interval: the most that a due checkpoint is delayed

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

/// The weakest consistency of all groups.
Consistency consistencyOf(const Manifest& manifest, const std::vector<CheckpointSource::Group>& groups) {
  std::vector<size_t> shards(groups.size());
  for (const ManifestBlock* block : blocksOf(manifest)) shards[block->range.group]++;
  Consistency least = Consistency::perGroup;
  for (size_t i = 0; i < groups.size(); i++) {
    if (shards[i] == 0) continue;
    const bool together = groups[i].together || shards[i] == 1;
    const Consistency own = together ? Consistency::perGroup : Consistency::perShard;
    least = std::min(least, groups[i].live ? Consistency::live : own);
  }
  return least;
}

}  // namespace

Checkpointer::Checkpointer(Env& env, DurabilityConfig config, CheckpointSource source, uint64_t nextNumber)
    : env_(env),
      config_(std::move(config)),
      source_(std::move(source)),
      nextNumber_(nextNumber),
      savedBuffers_(source_.store->buffers().get().number),
      savedSamples_(samples()),
      schedule_(termsOf(config_)) {
  schedule_.start(now(), {updates(), 0});
  thread_ = std::thread([this] { run(); });
}

Checkpointer::~Checkpointer() {
  {
    std::lock_guard hold(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  taken_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Checkpointer::takeNow() {
  std::unique_lock hold(mutex_);
  const uint64_t ticket = ++requested_;
  wake_.notify_one();
  taken_.wait(hold, [this, ticket] { return served_ >= ticket || ending_; });
  if (served_ < ticket) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  return outcome_;
}

void Checkpointer::requestCheckpoint() {
  const std::lock_guard hold(mutex_);
  requested_++;
  wake_.notify_one();
}

Status Checkpointer::finish() {
  {
    std::lock_guard hold(mutex_);
    if (!ending_) finalRequested_ = true;
    ending_ = true;
  }
  wake_.notify_one();
  taken_.notify_all();
  if (thread_.joinable()) thread_.join();
  return finalRequested_ ? finalOutcome_ : Status();
}

void Checkpointer::follow(const DurabilityConfig& config) {
  const std::lock_guard hold(mutex_);
  schedule_.follow(termsOf(config));
}

CheckpointSchedule::Terms Checkpointer::termsOf(const DurabilityConfig& config) const {
  return {.everySeconds = config.everySeconds,
          .everyUpdates = config.everyUpdates * source_.store->blockCount(),
          .everyBytes = source_.log ? config.everyBytes : 0};
}

CheckpointSchedule::Progress Checkpointer::progress() const {
  return {.updates = updates(),
          .logged = source_.log ? source_.logBytesBefore + source_.log->writtenBytes() : 0};
}

void Checkpointer::measure() {
  const uint64_t logged = source_.log ? source_.log->writtenBytes() : 0;
  DiskUse disk = diskUse(env_, config_.path, disk_);
  const std::lock_guard hold(mutex_);
  disk_ = std::move(disk);
  loggedAtMeasure_ = logged;
}

bool Checkpointer::due() const {
  const bool mendLog = source_.log && source_.log->broken() && schedule_.failures() == 0;
  return mendLog || schedule_.due(now(), progress());
}

void Checkpointer::run() {
  pthread_setname_np(pthread_self(), "psd-checkpoint");
  measure();
  std::unique_lock hold(mutex_);
  while (!ending_) {
    wake_.wait_for(hold, kPoll, [this] { return ending_ || requested_ != served_; });
    if (ending_ || (requested_ == served_ && !due())) continue;
    const uint64_t serving = requested_;  // later requests need a later checkpoint
    hold.unlock();
    const Status status = take();
    hold.lock();
    outcome_ = status;
    served_ = serving;
    taken_.notify_all();
  }
  // A requested checkpoint that was not taken yet may be the first one.
  const bool owed = requested_ != served_;
  const bool replayed = count_ == 0 && source_.logRecordsBefore > 0;
  const bool changed = replayed || schedule_.unsaved(updates()) || savedSamples_ != samples() ||
                       savedBuffers_ != source_.store->buffers().get().number;
  if (!finalRequested_ || (!owed && !changed)) return;
  hold.unlock();
  const Status status = take();
  hold.lock();
  finalOutcome_ = status;
}

Status Checkpointer::take() {
  std::unique_lock<std::mutex> alone;
  if (source_.checkpointMutex) alone = std::unique_lock(*source_.checkpointMutex);
  auto written = write(nextNumber_++);
  while (written.ok() && !*written) {
    base_.reset();
    written = write(nextNumber_++);
  }
  if (!written.ok()) base_.reset();  // the eviction lists it took are lost
  if (!written.ok() && source_.log) source_.log->abandon(written.error());
  // The folder may have been recreated by another daemon.
  if (!written.ok() && source_.folder && source_.folder->keep().ok()) removeUnfinished(env_, config_.path);
  measure();
  std::lock_guard hold(mutex_);
  if (!written.ok()) {
    schedule_.failed(now());
    failures_++;
    lastError_ = written.message();
    logLine(spdlog::level::err, {.event = "failed"},
            "no checkpoint: {}; training continues, older checkpoints stay, {} consecutive attempt(s) failed",
            lastError_, schedule_.failures());
    return written.error();
  }
  const Report& report = **written;
  schedule_.succeeded(now(), report.progress, report.bytes);
  count_++;
  lastError_.clear();
  report_ = report;
  pauseSecondsMax_ = std::max(pauseSecondsMax_, report.pauseSeconds);
  logLine(spdlog::level::info, {.event = "checkpoint"},
          "checkpoint '{}': {} bytes in {}, pushes paused for at most {}", report.path, report.bytes,
          durationText(report.seconds), durationText(report.pauseSeconds));
  return {};
}

Result<std::optional<Checkpointer::Report>> Checkpointer::write(uint64_t number) {
  const double began = now();
  ParameterStore& store = *source_.store;
  const std::vector<CheckpointSource::Group> groups = source_.groups();
  std::vector<std::string> policies;
  for (const CheckpointSource::Group& group : groups) policies.push_back(group.policy);
  Manifest manifest = describeStore(store, policies);
  manifest.created = utcNow();
  const std::vector<Span> spans = spansOf(manifest, groups);
  PSD_RETURN_IF_ERROR(makeImages(spans));
  if (source_.folder) {
    PSD_RETURN_IF_ERROR(source_.folder->keep());
    removeUnfinished(env_, config_.path);  // left by a daemon that died
  }
  Report report;
  report.progress.logged = progress().logged;
  PSD_ASSIGN_OR_RETURN(const bool withLog, mayStartLog());
  if (withLog) {
    // Rotate before the first shard is copied, so that every copy holds all updates of older segments.
    PSD_ASSIGN_OR_RETURN(const LogWriter::Place place, source_.log->rotate());
    manifest.logSegment = place.segment;
    manifest.logHistory = place.history;
    report.progress.logged = progress().logged;
  }
  PSD_ASSIGN_OR_RETURN(CheckpointWriter writer, CheckpointWriter::begin(env_, config_.path, number));
  KJ_DEFER(if (source_.samples) source_.samples->lockExclusive()->endSaving());
  const Lanes lanes = store.makeLanes();
  report.path = writer.path();
  const bool incremental = mayBeIncremental();
  for (const Span& span : spans) {
    std::vector<std::unique_ptr<RowsCopy>> rows;
    PSD_RETURN_IF_ERROR(copySpan(span, manifest, groups, lanes, rows, incremental, report.pauseSeconds));
    for (size_t i = span.first; i < span.last; i++) {
      report.progress.updates += blockOf(manifest, i).version.value;
      if (i >= manifest.shards.size()) continue;
      PSD_RETURN_IF_ERROR(writer.addShard(manifest.shards[i], images_[i - span.first].planes()));
    }
    PSD_RETURN_IF_ERROR(writeRows(span, rows, manifest, writer, report.pauseSeconds));
  }
  const Buffers::Current buffers = store.buffers().get();
  PSD_RETURN_IF_ERROR(writer.addBuffers(manifest, buffers.set.get()));
  // Take the samples before the log is synced, so that the log has every push of samples that are done.
  manifest.samples = samples();
  PSD_RETURN_IF_ERROR(finishLog(manifest));
  if (source_.groups() != groups) return std::optional<Report>();
  manifest.consistency = consistencyOf(manifest, groups);
  const bool anyIncremental = std::ranges::any_of(
      manifest.rowShards, [](const ManifestRowShard& shard) { return shard.since.has_value(); });
  if (anyIncremental) manifest.base = base_->name;
  PSD_RETURN_IF_ERROR(writer.finish(manifest));
  if (source_.beforeAnnounce) PSD_RETURN_IF_ERROR(source_.beforeAnnounce());
  base_ = baseAfter(manifest, writer, groups);
  savedSamples_ = std::move(manifest.samples);
  savedBuffers_ = buffers.number;
  if (manifest.logSegment != 0) source_.log->setBased();
  if (Status pruned = prune(); !pruned.ok()) spdlog::warn("cannot remove old files: {}", pruned.message());
  report.bytes = writer.bytesWritten();
  report.finishedAt = now();
  report.seconds = report.finishedAt - began;
  return std::optional(std::move(report));
}

bool Checkpointer::mayBeIncremental() const {
  if (!base_ || base_->length >= config_.fullEvery) return false;
  // If the base was removed, the next checkpoint must hold all rows.
  const auto there =
      env_.exists(checkpointPath(config_.path, base_->name.number) + "/" + std::string(kManifestName));
  return there.ok() && *there;
}

Checkpointer::Base Checkpointer::baseAfter(const Manifest& manifest, const CheckpointWriter& writer,
                                           const std::vector<CheckpointSource::Group>& groups) const {
  Base base{writer.asBase(), {}, manifest.base ? base_->length + 1 : 1};
  for (const ManifestRowShard& shard : manifest.rowShards) {
    base.rowShards.push_back({shard.version, groups[shard.range.group].live});
  }
  return base;
}

std::unique_ptr<RowsCopy> Checkpointer::beginRows(RowShard& shard, size_t index, Manifest& manifest,
                                                  bool live, bool incremental) const {
  if (config_.fullEvery == 1) return std::make_unique<RowsCopy>(shard, live);
  auto evicted = shard.turnover().takeEvicted();
  if (!incremental || !evicted) return std::make_unique<RowsCopy>(shard, live);
  const BaseSnapshot& before = base_->rowShards[index];
  manifest.rowShards[index].since = before.version;
  return std::make_unique<RowsCopy>(shard, live, before, *std::move(evicted));
}

Status Checkpointer::writeRows(const Span& span, std::vector<std::unique_ptr<RowsCopy>>& rows,
                               Manifest& manifest, CheckpointWriter& writer, double& pauseSeconds) {
  const size_t first = span.last - rows.size() - manifest.shards.size();
  // Round-robin, so that rows preserved by updates of one row shard do not pile up until all others are read.
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < rows.size(); i++) {
      if (!rows[i]) continue;
      PSD_ASSIGN_OR_RETURN(const bool left, rows[i]->writeSome(writer, *source_.store,
                                                               manifest.rowShards[first + i], pauseSeconds));
      if (!left) rows[i] = nullptr;
      more = more || left;
    }
  }
  return {};
}

Result<bool> Checkpointer::mayStartLog() const {
  if (!source_.log || !source_.log->broken()) return source_.log != nullptr;
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> finished, listCheckpoints(env_, config_.path, true));
  return !finished.empty();
}

Status Checkpointer::finishLog(Manifest& manifest) {
  if (manifest.logSegment == 0) return {};
  // No copy may hold more than a reader of the log finds in the log.
  const Status whole = source_.log->flush();
  if (whole.ok()) return {};
  // The copies may lack updates that were logged since the last rotate() and acknowledged; abandoning the log
  // that holds them would lose them. Nothing was promised for a history that no checkpoint leads to.
  if (source_.log->isBased()) return whole;
  source_.log->abandon(whole);
  manifest.logSegment = manifest.logHistory = 0;
  return {};
}

Result<std::set<uint64_t>> Checkpointer::partsOfWhole() const {
  std::set<uint64_t> numbers;
  if (source_.log) return numbers;  // would keep the log from being cut; a daemon resumes from its end
  PSD_ASSIGN_OR_RETURN(const auto whole, readWhole(env_, config_.path));
  const Partition& partition = source_.store->model().partition;
  if (!whole || whole->parts.size() != partition.of) return numbers;
  numbers.insert(whole->parts[partition.index].number);
  if (!whole->before.empty()) numbers.insert(whole->before[partition.index]);
  return numbers;
}

Status Checkpointer::prune() {
  PSD_ASSIGN_OR_RETURN(const std::set<uint64_t> pinned, partsOfWhole());
  PSD_ASSIGN_OR_RETURN(const uint64_t kept,
                       pruneCheckpoints(env_, config_.path, config_.keep, source_.damaged, pinned));
  if (!source_.log || kept == 0) return {};
  // The log reaches back to the oldest checkpoint, so that a daemon can resume from any of them.
  PSD_ASSIGN_OR_RETURN(const Manifest oldest, readManifest(env_, checkpointPath(config_.path, kept)));
  return source_.log->removeBefore(oldest.logSegment);
}

std::vector<Checkpointer::Span> Checkpointer::spansOf(const Manifest& manifest,
                                                      const std::vector<CheckpointSource::Group>& groups) {
  // In the order of the shards' numbers, which the sample accounting relies on.
  std::vector<Span> spans;
  const std::vector<const ManifestBlock*> blocks = blocksOf(manifest);
  for (size_t i = 0; i < blocks.size(); i++) {
    if (spans.empty() || i >= spans.back().last) spans.push_back({i, i + 1});
    const uint32_t group = blocks[i]->range.group;
    if (!groups[group].together) continue;
    const auto ofGroup = [group](const ManifestBlock* block) { return block->range.group == group; };
    const auto end = std::find_if(blocks.rbegin(), blocks.rend(), ofGroup).base();
    spans.back().last = std::max(spans.back().last, static_cast<size_t>(end - blocks.begin()));
  }
  return spans;
}

Status Checkpointer::makeImages(std::vector<Span> spans) {
  if (spans == spans_) return {};
  images_.clear();
  spans_.clear();
  const size_t dense = source_.store->shardCount();  // come first among the blocks of a span
  size_t longest = 0;
  for (const Span& span : spans) {
    if (span.first < dense) longest = std::max(longest, std::min(span.last, dense) - span.first);
  }
  for (size_t k = 0; k < longest; k++) {
    std::vector<size_t> shards;
    for (const Span& span : spans) {
      if (span.first + k < std::min(span.last, dense)) shards.push_back(span.first + k);
    }
    PSD_ASSIGN_OR_RETURN(ShardImage image, ShardImage::make(*source_.store, shards));
    images_.push_back(std::move(image));
  }
  spans_ = std::move(spans);
  std::lock_guard hold(mutex_);
  copyBytes_ = 0;
  for (const ShardImage& image : images_) copyBytes_ += image.bytes();
  return {};
}

Status Checkpointer::copySpan(const Span& span, Manifest& manifest,
                              const std::vector<CheckpointSource::Group>& groups, const Lanes& lanes,
                              std::vector<std::unique_ptr<RowsCopy>>& rows, bool incremental,
                              double& pauseSeconds) {
  kj::EventLoop loop;  // locks are awaited as promises; this thread may block
  kj::WaitScope scope(loop);
  std::map<uint32_t, ShardLock::Guard> together;
  for (size_t i = span.first; i < span.last; i++) {
    ManifestBlock& entry = blockOf(manifest, i);
    const CheckpointSource::Group& group = groups[entry.range.group];
    if (group.together && !together.contains(entry.range.group)) {
      together.emplace(entry.range.group, group.together->acquire().wait(scope));
    }
    if (i >= manifest.shards.size()) {
      RowShard& shard = source_.store->rowShard(i - manifest.shards.size());
      const ShardLock::Guard guard = shard.lock().acquire().wait(scope);
      beginShard(shard, entry, !group.live);
      rows.push_back(beginRows(shard, i - manifest.shards.size(), manifest, group.live, incremental));
      continue;
    }
    Shard& shard = source_.store->shard(i);
    PSD_RETURN_IF_ERROR(copyShard(shard, entry, group.live, images_[i - span.first], *lanes[shard.device()],
                                  scope, pauseSeconds));
  }
  for (const auto& [group, guard] : together)
    pauseSeconds = std::max(pauseSeconds, seconds(guard.nextWaiterDelay()));
  return {};
}

void Checkpointer::beginShard(const ParameterBlock& block, ManifestBlock& entry, bool locked) const {
  // The copy includes the gradients of all samples that are done by now.
  if (source_.samples) source_.samples->lockExclusive()->beginShard();
  // Read the version first: what is read after it holds at least these updates.
  entry.version = block.version();
  if (locked) entry.pushed = block.pushed();
}

Status Checkpointer::copyShard(Shard& shard, ManifestBlock& entry, bool live, ShardImage& image, Lane& lane,
                               kj::WaitScope& scope, double& pauseSeconds) const {
  if (live) {
    beginShard(shard, entry, false);
    return image.copy(shard, lane);
  }
  const ShardLock::Guard guard = shard.lock().acquire().wait(scope);
  beginShard(shard, entry, true);
  Status status = image.copy(shard, lane);
  pauseSeconds = std::max(pauseSeconds, seconds(guard.nextWaiterDelay()));
  return status;
}

std::optional<SavedSamples> Checkpointer::samples() const {
  if (!source_.samples) return {};
  const auto plan = source_.samples->lockExclusive();
  return plan->begun() ? std::optional(plan->saved()) : std::nullopt;
}

uint64_t Checkpointer::updates() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < source_.store->blockCount(); i++) sum += source_.store->block(i).version().value;
  return sum;
}

DurabilityStatus Checkpointer::status() const {
  std::lock_guard hold(mutex_);
  DurabilityStatus out;
  if (report_) {
    out.lastCheckpoint = {.path = report_->path,
                          .ageSeconds = now() - report_->finishedAt,
                          .durationSeconds = report_->seconds,
                          .pauseSeconds = report_->pauseSeconds,
                          .writtenBytes = report_->bytes,
                          .updates = report_->progress.updates};
  }
  out.checkpoints = count_;
  out.checkpointPauseMaxSeconds = pauseSecondsMax_;
  out.checkpointCopyBytes = copyBytes_;
  out.checkpointFailures = failures_;
  out.error = lastError_;
  out.checkpointDiskBytes = disk_.checkpoints;
  out.kept = disk_.kept;
  if (source_.log) {
    out.log = source_.log->status();
    out.log->diskBytes =
        disk_.log + out.log->writtenBytes - std::min(loggedAtMeasure_, out.log->writtenBytes);
  }
  return out;
}

}  // namespace psd
