#include "server/policy/all_reduce.h"

#include <utility>

#include "common/os/random_id.h"
#include "server/policy/aggregator/mean.h"

namespace psd {
namespace {

constexpr uint64_t kTimeoutMsMin = 100, kTimeoutMsMax = 3'600'000, kTimeoutMs = 5000;
constexpr uint64_t kBucketBytesMin = 4096, kBucketBytesMax = uint64_t{1} << 30, kBucketBytes = 4u << 20;
constexpr uint64_t kStartTrainersMax = 1'000'000;

std::chrono::steady_clock::time_point clockNow() { return std::chrono::steady_clock::now(); }

/// A random first generation, so that generations of different daemon processes do not collide.
uint64_t firstGeneration() { return (drawBits() >> 32 << 24) + 1; }

RoundOptions roundsOf(const Clip& clip) {
  RoundOptions options{.name = "allreduce", .aggregator = std::make_shared<Mean>(), .clip = clip};
  options.rules.backupTrainers = UINT32_MAX;  // one contribution makes a round
  return options;
}

PolicyScope withoutMetrics(PolicyScope scope) {
  scope.roundMetrics.reset();  // no trainer is left out of these rounds
  return scope;
}

}  // namespace

PolicyPlan AllReduce::read(ConfigReader in) {
  constexpr std::string_view kNoStaleness =
      "requires an asynchronous policy; a group averages gradients of the newest parameters";
  const Modifiers modifiers =
      readModifiers(in, {.staleness = kNoStaleness, .delayCompensation = kNoStaleness});
  Options options{.clip = modifiers.clip};
  options.terms.timeout = std::chrono::milliseconds(kTimeoutMs);
  in.integer({"timeout_ms",
              "Time without a sign of a member after which an averaging group continues without it. More "
              "than twice the difference between the slowest and the fastest step."},
             options.terms.timeout, kTimeoutMsMin, kTimeoutMsMax);
  options.terms.bucketBytes = kBucketBytes;
  in.integer({"bucket_bytes", "Bytes of gradient in one averaging call; several are in flight together."},
             options.terms.bucketBytes, kBucketBytesMin, kBucketBytesMax);
  options.startTrainers = 1;
  in.integer({"start_trainers",
              "The first averaging group of a run waits for that many trainers. At most `world_size`."},
             options.startTrainers, 1, kStartTrainersMax);
  PolicyPlan plan{
      .make = [options](const PolicyScope& scope) { return std::make_unique<AllReduce>(scope, options); },
      .changesGradients = modifiers.changesGradients(),
      .rounds = {.minTrainers = options.startTrainers}};
  plan.needsWholeGradient = "trainers push their average to one daemon";
  plan.allReduce = options.terms;
  return plan;
}

AllReduce::AllReduce(const PolicyScope& scope, const Options& options)
    : first_(scope.shards().empty() ? nullptr : scope.shards().front()),
      rounds_(withoutMetrics(scope), roundsOf(options.clip)),
      groups_(firstGeneration(), options.terms.timeout / 2,
              scope.started || scope.resumeWithin ? 1 : options.startTrainers) {}

kj::Promise<void> AllReduce::join(const TrainerRef& trainer) {
  {
    const std::lock_guard lock(mutex_);
    groups_.join(trainer.session, trainer.rank);
    processes_[trainer.session] = {trainer.rank, trainer.incarnation};
  }
  return rounds_.join(trainer);
}

kj::Promise<void> AllReduce::leave(SessionId session) {
  {
    const std::lock_guard lock(mutex_);
    groups_.leave(session);
    processes_.erase(session);
    const Error gone{ErrorCode::sessionEnded, "the trainer has left or is lost"};
    watchers_.answer(session, gone);
    waiters_.answer(session, gone);
    after_.erase(session);
    settle();
  }
  return rounds_.leave(session);
}

kj::Promise<void> AllReduce::tick(std::chrono::steady_clock::time_point time) {
  {
    const std::lock_guard lock(mutex_);
    settle();
  }
  return rounds_.tick(time);
}

bool AllReduce::acceptPush(ShardPush& push) {
  const std::lock_guard lock(mutex_);
  if (!groups_.leads(push.trainer.session)) return false;
  push.shares = shares_;
  inFlight_++;
  return true;
}

void AllReduce::pushDone() {
  const std::lock_guard lock(mutex_);
  inFlight_--;
  settle();
}

kj::Promise<Result<PushAnswer>> AllReduce::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                Gradient gradient) {
  if (!acceptPush(push)) {
    push.taken += gradient.size();
    const PushOutcome outcome = push.taken < push.total ? PushOutcome::received : PushOutcome::late;
    return Result<PushAnswer>(PushAnswer{outcome, shard.version(), 0, 0});
  }
  return rounds_.push(shard, lane, push, offset, std::move(gradient)).attach(kj::defer([this] {
    pushDone();
  }));
}

void AllReduce::settle() {
  if (ended_) return;
  if (groups_.wanted()) watchers_.answerAll(RoundDue::groupWanted);
  if (inFlight_ > 0 || !groups_.due(clockNow())) return;
  const auto members = groups_.form(first_ ? first_->version() : Version{});
  FormedGroup formed{.generation = groups_.generation()};
  auto shares = std::make_shared<std::vector<TrainerProcess>>();
  for (const auto& [session, member] : members) {
    formed.members.push_back(member);
    if (!groups_.leads(session)) shares->push_back(processes_[session]);
  }
  shares_ = std::move(shares);
  for (const auto& [session, member] : members) {
    formed.reached = groups_.reachedBy(after_[session]);
    waiters_.answer(session, formed);
    formed.index++;
  }
  watchers_.answerAll(RoundDue::groupWanted);
}

kj::Promise<Result<FormedGroup>> AllReduce::formAveragingGroup(SessionId session, uint64_t after,
                                                               const AveragingMember& where) {
  const std::lock_guard lock(mutex_);
  if (!ended_ && !groups_.wait(session, {where.host, where.port, after}, clockNow())) {
    return Result<FormedGroup>(ErrorCode::sessionEnded, "the trainer is no longer joined");
  }
  after_[session] = after;
  auto formed = waiters_.add(session);
  settle();
  return formed;
}

kj::Promise<Result<RoundDue>> AllReduce::roundDue(SessionId session, Version) {
  const std::lock_guard lock(mutex_);
  if (!ended_ && groups_.wanted()) return Result<RoundDue>(RoundDue::groupWanted);
  return watchers_.add(session);
}

std::vector<Waiting> AllReduce::waiting() const {
  const std::lock_guard lock(mutex_);
  const auto since = groups_.waitingSince();
  if (!since) return {};
  Waiting waiting{"the next averaging group", groups_.waiters(), {}, groups_.joinsNeeded()};
  for (const SessionId session : groups_.awaited()) waiting.awaited.push_back({session, *since});
  return {waiting};
}

RoundsReport AllReduce::report() const {
  RoundsReport report = rounds_.report();
  report.leftOut.clear();
  report.last.missing.clear();
  report.last.contributors.clear();
  const std::lock_guard lock(mutex_);
  report.generation = groups_.generation();
  for (const auto& [session, member] : groups_.members()) report.last.contributors.push_back(member.rank);
  return report;
}

void AllReduce::endParked(const Error& reason) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  waiters_.end(reason);
  watchers_.end(reason);
}

void AllReduce::retire() {
  endParked({ErrorCode::notReady, "another policy has taken over"});
  rounds_.retire();
}

void AllReduce::endWaits(const Error& reason) {
  endParked(reason);
  rounds_.endWaits(reason);
}

}  // namespace psd
