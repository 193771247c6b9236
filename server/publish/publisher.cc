#include "server/publish/publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <pthread.h>
#include <spdlog/fmt/fmt.h>

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

Publisher::Publisher(std::shared_ptr<VersionStore> versions, PublishConfig config, std::string path,
                     Partition partition, std::shared_ptr<RoundQueue> rounds)
    : versions_(std::move(versions)),
      path_(std::move(path)),
      partition_(partition),
      rounds_(std::move(rounds)),
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
  if (!rounds_) return;
  rounds_->close();  // what it holds is of another model
  if (!ending_) rounds_->open(config_.everyUpdates, [this] { wake_.notify_one(); });
}

void Publisher::forget() {
  const std::lock_guard hold(mutex_);
  source_.reset();
  if (rounds_) rounds_->close();
}

Publisher::Making Publisher::publishAfter() {
  using Outcome = Result<VersionInfo>;
  const std::lock_guard hold(mutex_);
  if (ending_) {
    return {kj::READY_NOW, Outcome(Error{ErrorCode::shuttingDown, "the daemon is shutting down"})};
  }
  if (!source_) return {kj::READY_NOW, Outcome(Error{ErrorCode::notReady, "the model has no values yet"})};
  if (rounds_) {
    return {kj::READY_NOW,
            Outcome(Error{ErrorCode::invalidArgument,
                          "several daemons publish the same rounds, so that their parts are of one moment: "
                          "every round whose number is a multiple of publish.every_updates"})};
  }
  auto copied = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto published = kj::newPromiseAndCrossThreadFulfiller<Outcome>();
  requests_.push_back({kj::mv(copied.fulfiller), kj::mv(published.fulfiller)});
  wake_.notify_one();
  return {kj::mv(copied.promise), kj::mv(published.promise)};
}

kj::Promise<void> Publisher::hold() {
  const std::lock_guard hold(mutex_);
  isHeld_ = true;
  if (ending_) return kj::READY_NOW;
  auto held = kj::newPromiseAndCrossThreadFulfiller<void>();
  holds_.push_back(kj::mv(held.fulfiller));
  wake_.notify_one();
  return kj::mv(held.promise);
}

void Publisher::release() {
  const std::lock_guard hold(mutex_);
  isHeld_ = false;
  wake_.notify_one();
}

void Publisher::answerHolds() {
  for (auto& each : holds_) each->fulfill();
  holds_.clear();
}

void Publisher::follow(const PublishConfig& config) {
  const std::lock_guard hold(mutex_);
  config_ = config;
  if (rounds_) rounds_->follow(config_.everyUpdates);
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
    if (rounds_ && !publishLast_) rounds_->close();  // else the thread does, after what is held
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
  for (; !ending_; passes_++) {
    wake_.wait_for(hold, kPoll, [this] { return ending_ || !holds_.empty() || mayWork(); });
    const bool hasRounds = rounds_ && !rounds_->empty();
    if (!hasRounds || ending_) answerHolds();  // rounds that were held before are published first
    if (ending_) break;
    if (isHeld_ && holds_.empty()) continue;
    if (copy_ && (!source_ || &copy_->store() != source_->store.get())) {
      copy_ = nullptr;  // of a previous model
      gathering_.reset();
    }
    if (hasRounds) {
      hold.unlock();
      runRounds();
      hold.lock();
      continue;
    }
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
  answerHolds();
  for (Request& request : requests_) {
    request.answer(Error{ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  requests_.clear();
  const bool last =
      publishLast_ && source_ && scheduled() && !rounds_ && schedule_.unsaved(updatesOf(*source_->store));
  hold.unlock();
  Requests none;
  if (last) lastOutcome_ = attempt(true, none).status();
  if (rounds_) {
    runRounds();
    rounds_->close();
  }
  hold.lock();
  hasEnded_ = true;
  ended_.notify_all();
}

bool Publisher::due() const {
  return source_ && scheduled() && !rounds_ && schedule_.due(now(), {updatesOf(*source_->store), 0});
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
  PSD_RETURN_IF_ERROR(makeCopyOf(*source, config));
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

Status Publisher::makeCopyOf(const CheckpointSource& source, const PublishConfig& config) {
  if (source.store->shardCount() == 0) {
    return {ErrorCode::invalidArgument,
            "the model has only embedding tables, which are not in published versions"};
  }
  if (copy_ && &copy_->store() == source.store.get()) return {};
  copy_ = nullptr;  // before the next one is allocated
  gathering_.reset();
  PSD_ASSIGN_OR_RETURN(copy_, WeightsCopy::make(source.store, config.as));
  return {};
}

void Publisher::runRounds() {
  while (std::optional<RoundQueue::Held> held = rounds_->take()) {
    const double began = now();
    const uint64_t number = held->moment.number;
    const Status gathered = gather(*std::move(held));
    if (gathered.ok() && gathering_ && !gathering_->missing.empty()) continue;
    const Result<VersionInfo> made =
        gathered.ok() && gathering_ ? makeOfRound() : Result<VersionInfo>(gathered.error());
    gathering_.reset();
    const std::lock_guard hold(mutex_);
    if (ending_) lastOutcome_ = made.status();
    outcomes_.note(
        made.ok() ? made
                  : Result<VersionInfo>(made.error().code,
                                        fmt::format("round {} is in no version: {}", number, made.message())),
        now() - began, "training continues, ");
  }
}

Status Publisher::gather(RoundQueue::Held held) {
  std::optional<CheckpointSource> source;
  PublishConfig config;
  {
    const std::lock_guard hold(mutex_);
    source = source_;
    config = config_;
  }
  if (!source) return {ErrorCode::notReady, "the model is gone"};
  PSD_RETURN_IF_ERROR(makeCopyOf(*source, config));
  const std::set<uint32_t> groups = copy_->groups();
  if (!gathering_ || gathering_->moment != held.moment) {
    if (gathering_) {
      const std::lock_guard hold(mutex_);
      outcomes_.note(Error{ErrorCode::notReady,
                           fmt::format("round {} is in no version: not all parameter groups have made it of "
                                       "the same pushes",
                                       gathering_->moment.number)},
                     0, "training continues, ");
    }
    gathering_ = Gathering{.moment = held.moment, .missing = groups};
  }
  gathering_->missing.erase(held.group);
  return copy_->takeGroup(held.group, gathering_->taken);
}

Result<VersionInfo> Publisher::makeOfRound() {
  WeightsCopy::Taken& taken = gathering_->taken;
  const std::vector<SafetensorsEntry> tensors = safetensorsEntries(copy_->model());
  PSD_ASSIGN_OR_RETURN(const std::span<const std::byte> values, copy_->convert());
  VersionInfo info{.number = gathering_->moment.number,
                   .step = std::ranges::min(taken.shardVersions),
                   .created = utcNow(),
                   .moment = VersionMoment::round,
                   .shardVersions = std::move(taken.shardVersions),
                   .part = partition_.index,
                   .parts = partition_.of,
                   .momentId = gathering_->moment.id};
  PSD_ASSIGN_OR_RETURN(info, versions_->publish(std::move(info), {tensors, values}));
  const std::lock_guard hold(mutex_);
  pauseMaxSeconds_ = std::max(pauseMaxSeconds_, taken.pauseSeconds);
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
  if (rounds_ && out.error.empty()) out.error = rounds_->fault();
  out.pauseMaxSeconds = pauseMaxSeconds_;
  return out;
}

}  // namespace psd
