#include "server/publish/publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <pthread.h>

#include "server/checkpoint/manifest.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPoll{20};  // the most that a due version is delayed

constexpr std::chrono::seconds kLastWait{10};  // for the standby to receive the last version

constexpr double kPruneSeconds = 1;  // between looks for leases that have ended

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Publisher::Publisher(std::shared_ptr<VersionStore> versions, PublishConfig config, std::string path)
    : versions_(std::move(versions)),
      path_(std::move(path)),
      config_(std::move(config)),
      schedule_(CheckpointSchedule::Terms{}) {
  thread_ = std::thread([this] { run(); });
}

Publisher::~Publisher() { stop(); }

void Publisher::begin(CheckpointSource source) {
  const std::lock_guard hold(mutex_);
  if (source_ && source_->store == source.store) return;
  source_ = std::move(source);
  schedule_ = CheckpointSchedule(scheduleTerms());
  schedule_.start(now(), {updatesOf(*source_->store), 0});
}

void Publisher::forget() {
  const std::lock_guard hold(mutex_);
  source_.reset();
}

Publisher::Making Publisher::publishAfter() {
  using Outcome = Result<VersionInfo>;
  const std::lock_guard hold(mutex_);
  if (ending_) {
    return {kj::READY_NOW, Outcome(Error{ErrorCode::shuttingDown, "the daemon is shutting down"})};
  }
  if (!source_) return {kj::READY_NOW, Outcome(Error{ErrorCode::notReady, "the model has no values yet"})};
  auto copied = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto published = kj::newPromiseAndCrossThreadFulfiller<Outcome>();
  requests_.push_back({kj::mv(copied.fulfiller), kj::mv(published.fulfiller)});
  wake_.notify_one();
  return {kj::mv(copied.promise), kj::mv(published.promise)};
}

void Publisher::follow(const PublishConfig& config, VersionLedger::Terms terms) {
  versions_->follow(terms);
  const std::lock_guard hold(mutex_);
  config_ = config;
  if (source_) schedule_.follow(scheduleTerms());
}

Status Publisher::finish() {
  end(true);
  return lastOutcome_;
}

void Publisher::end(bool publishLast) {
  {
    const std::lock_guard hold(mutex_);
    if (!ending_) publishLast_ = publishLast;
    ending_ = true;
  }
  wake_.notify_one();
  {
    // The caller's thread may be the one that would give up a standby which does not answer.
    std::unique_lock hold(mutex_);
    while (publishLast_ && !hasEnded_ && versions_->waitedForStandby() < kLastWait) {
      ended_.wait_for(hold, std::chrono::milliseconds(100), [this] { return hasEnded_; });
    }
  }
  versions_->endMirror();
  if (thread_.joinable()) thread_.join();
  versions_->end({ErrorCode::shuttingDown, "the daemon is shutting down"});
}

CheckpointSchedule::Terms Publisher::scheduleTerms() const {
  return {.everySeconds = config_.everySeconds,
          .everyUpdates = config_.everyUpdates * source_->store->shardCount()};
}

uint64_t Publisher::updatesOf(const ParameterStore& store) {
  uint64_t sum = 0;
  for (size_t i = 0; i < store.shardCount(); i++) sum += store.shard(i).version().value;
  return sum;
}

void Publisher::run() {
  pthread_setname_np(pthread_self(), "psd-publish");
  double pruneAt = 0;
  std::unique_lock hold(mutex_);
  while (!ending_) {
    wake_.wait_for(hold, kPoll, [this] { return ending_ || !requests_.empty(); });
    if (ending_) break;
    if (copy_ && (!source_ || &copy_->store() != source_->store.get()))
      copy_ = nullptr;  // of a previous model
    const bool isDue = due();
    if (requests_.empty() && !isDue) {
      if (now() < pruneAt) continue;
      pruneAt = now() + kPruneSeconds;
      hold.unlock();
      versions_->prune();
      hold.lock();
      continue;
    }
    Requests served;
    std::swap(served, requests_);
    hold.unlock();
    const Result<VersionInfo> outcome = attempt(isDue, served);
    for (Request& request : served) request.answer(outcome);
    hold.lock();
  }
  for (Request& request : requests_) {
    request.answer(Error{ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  requests_.clear();
  const bool last = publishLast_ && source_ && scheduled() && schedule_.unsaved(updatesOf(*source_->store));
  hold.unlock();
  Requests none;
  if (last) lastOutcome_ = attempt(true, none).status();
  hold.lock();
  hasEnded_ = true;
  ended_.notify_all();
}

bool Publisher::due() const {
  return source_ && scheduled() && schedule_.due(now(), {updatesOf(*source_->store), 0});
}

Result<VersionInfo> Publisher::attempt(bool isDue, Requests& served) {
  const double began = now();
  Result<VersionInfo> made = make(served);
  const std::lock_guard hold(mutex_);
  if (!made.ok() && isDue) schedule_.failed(now());
  outcomes_.note(made, now() - began, "training continues, ");
  return made;
}

Result<VersionInfo> Publisher::make(Requests& served) {
  std::optional<CheckpointSource> source;
  PublishConfig config;
  {
    const std::lock_guard hold(mutex_);
    source = source_;
    config = config_;
  }
  if (!source) return Error{ErrorCode::notReady, "the model has no values yet"};
  if (source->store->shardCount() == 0) {
    return Error{ErrorCode::invalidArgument,
                 "the model has only embedding tables, which are not in published versions"};
  }
  if (!copy_ || &copy_->store() != source->store.get()) {
    copy_ = nullptr;  // before the next one is allocated
    PSD_ASSIGN_OR_RETURN(copy_, WeightsCopy::make(source->store, config.as));
  }
  const std::vector<SafetensorsEntry> tensors = safetensorsEntries(copy_->model());
  PSD_RETURN_IF_ERROR(versions_->admits(tensors, source->store->shardCount()));
  const uint64_t updates = updatesOf(*source->store);
  std::optional<WeightsCopy::Taken> taken;
  while (!taken) {
    PSD_ASSIGN_OR_RETURN(taken, copy_->take(*source));
  }
  for (Request& request : served) request.noteCopied();
  PSD_ASSIGN_OR_RETURN(const std::span<const std::byte> values, copy_->convert());
  VersionInfo info{.step = taken->step,
                   .created = utcNow(),
                   .moment = taken->moment,
                   .shardVersions = std::move(taken->shardVersions)};
  PSD_ASSIGN_OR_RETURN(info, versions_->publish(std::move(info), {tensors, values}));
  const std::lock_guard hold(mutex_);
  if (source_ && source_->store == source->store) schedule_.succeeded(now(), {updates, 0}, info.bytes);
  pauseMaxSeconds_ = std::max(pauseMaxSeconds_, taken->pauseSeconds);
  return info;
}

PublishStatus Publisher::status() const {
  PublishStatus out;
  versions_->fillStatus(out);
  const std::lock_guard hold(mutex_);
  out.from = publishFromName(config_.from);
  out.path = path_;
  out.as = config_.as ? dtypeName(*config_.as) : "model";
  outcomes_.fillStatus(out);
  out.pauseMaxSeconds = pauseMaxSeconds_;
  return out;
}

}  // namespace psd
