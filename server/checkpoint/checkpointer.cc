#include "server/checkpoint/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <kj/async.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPoll{50};  // how late a checkpoint that is due may begin

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::string utcNow() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Checkpointer::Checkpointer(Env& env, DurabilityConfig config, CheckpointSource source, uint64_t nextNumber)
    : env_(env),
      config_(std::move(config)),
      source_(std::move(source)),
      schedule_({config_.everySeconds, config_.everyUpdates * source_.store->shardCount()}),
      nextNumber_(nextNumber),
      savedSamples_(samples()) {
  schedule_.start(now(), updates());
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
  wanted_ = true;
  wake_.notify_one();
  taken_.wait(hold, [this] { return !wanted_ || ending_; });
  return outcome_;
}

Status Checkpointer::finish() {
  {
    std::lock_guard hold(mutex_);
    if (!ending_) lastOne_ = true;
    ending_ = true;
  }
  wake_.notify_one();
  taken_.notify_all();
  if (thread_.joinable()) thread_.join();
  return lastOne_ ? outcome_ : Status();
}

bool Checkpointer::due() const {
  const bool mendLog = source_.log && source_.log->broken() && schedule_.failures() == 0;
  return mendLog || schedule_.due(now(), updates());
}

void Checkpointer::run() {
  pthread_setname_np(pthread_self(), "psd-checkpoint");
  std::unique_lock hold(mutex_);
  while (!ending_) {
    wake_.wait_for(hold, kPoll, [this] { return ending_ || wanted_; });
    if (ending_ || (!wanted_ && !due())) continue;
    hold.unlock();
    const Status status = take();
    hold.lock();
    outcome_ = status;
    wanted_ = false;
    taken_.notify_all();
  }
  outcome_ = Status();
  if (!lastOne_ || (!schedule_.unsaved(updates()) && savedSamples_ == samples())) return;
  hold.unlock();
  const Status status = take();
  hold.lock();
  outcome_ = status;
}

Status Checkpointer::take() {
  const Result<Report> report = write(nextNumber_++);
  std::lock_guard hold(mutex_);
  if (!report.ok()) {
    schedule_.failed(now());
    failures_++;
    lastError_ = report.message();
    spdlog::error(
        "no checkpoint: {}; training goes on, older checkpoints stay, {} attempt(s) failed in a row",
        lastError_, schedule_.failures());
    return report.error();
  }
  schedule_.succeeded(now(), report->updates);
  count_++;
  lastError_.clear();
  report_ = *report;
  pauseMsMax_ = std::max(pauseMsMax_, report->pauseMs);
  spdlog::info("checkpoint '{}': {} bytes in {:.2f} s, pushes paused for at most {:.1f} ms", report->path,
               report->bytes, report->seconds, report->pauseMs);
  return {};
}

Result<Checkpointer::Report> Checkpointer::write(uint64_t number) {
  const double began = now();
  ParameterStore& store = *source_.store;
  if (!image_) {
    PSD_ASSIGN_OR_RETURN(image_, ShardImage::make(store));
  }
  std::vector<std::string> policies;
  for (CheckpointSource::Group& group : source_.groups()) policies.push_back(std::move(group.policy));
  Manifest manifest = describeStore(store, policies);
  manifest.created = utcNow();
  const bool liveBefore = readsLive();
  if (source_.log) {
    // Before the first shard is copied: what older segments hold is in every copy.
    PSD_ASSIGN_OR_RETURN(const LogWriter::Place place, source_.log->rotate());
    manifest.logSegment = place.segment;
    manifest.logHistory = place.history;
  }
  PSD_ASSIGN_OR_RETURN(CheckpointWriter writer, CheckpointWriter::begin(env_, config_.path, number));
  KJ_DEFER(if (source_.samples) source_.samples->lockExclusive()->endSaving());
  Lanes lanes = store.makeLanes();
  Report report;
  report.path = writer.path();
  for (ManifestShard& entry : manifest.shards) {
    Shard& shard = store.shard(entry.range.id.value);
    PSD_RETURN_IF_ERROR(copyShard(shard, entry, *image_, *lanes[shard.device()], report.pauseMs));
    PSD_RETURN_IF_ERROR(writer.addShard(entry, image_->planes()));
    report.updates += entry.version.value;
  }
  if (source_.log) waitForLog();
  // A policy that came or went meanwhile let updates race with the copies.
  manifest.consistency = liveBefore || readsLive() ? Consistency::live : Consistency::perShard;
  manifest.samples = samples();
  PSD_RETURN_IF_ERROR(writer.finish(manifest));
  savedSamples_ = std::move(manifest.samples);
  if (source_.log) source_.log->based();
  if (Status pruned = prune(); !pruned.ok()) spdlog::warn("something old stays: {}", pruned.message());
  report.bytes = writer.bytesWritten();
  report.finishedAt = now();
  report.seconds = report.finishedAt - began;
  return report;
}

Status Checkpointer::prune() {
  PSD_RETURN_IF_ERROR(pruneCheckpoints(env_, config_.path, config_.keep));
  if (!source_.log) return {};
  // The log reaches back to the oldest checkpoint, so that any of them can be gone on from.
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> kept, listCheckpoints(env_, config_.path, true));
  PSD_ASSIGN_OR_RETURN(const Manifest oldest, readManifest(env_, checkpointPath(config_.path, kept.front())));
  return source_.log->removeBefore(oldest.logSegment);
}

void Checkpointer::waitForLog() const {
  // No copy is to hold more than whoever reads the log finds there: an update of which another shard's part
  // is missing is left out.
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  for (const CheckpointSource::Group& group : source_.groups()) {
    if (group.rest) group.rest().wait(scope);
  }
  source_.log->flush();
}

bool Checkpointer::readsLive() const {
  const std::vector<CheckpointSource::Group> groups = source_.groups();
  return std::any_of(groups.begin(), groups.end(),
                     [](const CheckpointSource::Group& group) { return group.live; });
}

Status Checkpointer::copyShard(Shard& shard, ManifestShard& entry, ShardImage& image, Lane& lane,
                               double& pauseMs) const {
  // What is done by now is in the copy.
  const auto beginSamples = [this] {
    if (source_.samples) source_.samples->lockExclusive()->beginShard();
  };
  if (source_.groups()[entry.range.group].live) {
    beginSamples();
    // The version first: what is read after it holds at least these updates.
    entry.version = shard.version();
    return image.copy(shard, lane);
  }
  kj::EventLoop loop;  // the lock is waited for with a promise, and this thread may block
  kj::WaitScope scope(loop);
  const ShardLock::Guard guard = shard.lock().acquire().wait(scope);
  const double began = now();
  beginSamples();
  entry.version = shard.version();
  entry.pushes = shard.pushes();
  Status status = image.copy(shard, lane);
  pauseMs = std::max(pauseMs, (now() - began) * 1e3);
  return status;
}

std::optional<SavedSamples> Checkpointer::samples() const {
  if (!source_.samples) return {};
  const auto plan = source_.samples->lockExclusive();
  return plan->begun() ? std::optional(plan->saved()) : std::nullopt;
}

uint64_t Checkpointer::updates() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < source_.store->shardCount(); i++) sum += source_.store->shard(i).version().value;
  return sum;
}

nlohmann::ordered_json Checkpointer::status() const {
  std::lock_guard hold(mutex_);
  nlohmann::ordered_json out;
  out["last_checkpoint"] = nullptr;
  if (report_) {
    out["last_checkpoint"] = {{"path", report_->path},          {"age_s", now() - report_->finishedAt},
                              {"duration_s", report_->seconds}, {"pause_ms", report_->pauseMs},
                              {"bytes", report_->bytes},        {"updates", report_->updates}};
  }
  out["checkpoints"] = count_;
  out["checkpoint_pause_ms_max"] = pauseMsMax_;
  out["checkpoint_failures"] = failures_;
  out["error"] = lastError_;
  if (source_.log) out["log"] = source_.log->status();
  return out;
}

}  // namespace psd
