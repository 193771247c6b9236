#include "server/policy/sync.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "server/policy/store_promise.h"

namespace psd {
namespace {

constexpr uint64_t kAnyRound = UINT64_MAX;

TimePoint now() { return std::chrono::steady_clock::now(); }

/// The first difference between two sets of hyperparameters, as "lr 0.1 and 0.01"; empty: none.
std::string describeDifference(const Optimizer& optimizer, const std::vector<double>& one,
                               const std::vector<double>& other) {
  const std::vector<std::string> names = optimizer.hyperparameterNames();
  for (size_t i = 0; i < names.size(); i++) {
    if (one[i] != other[i]) return fmt::format("{} {} and {}", names[i], one[i], other[i]);
  }
  return "";
}

/// The first difference between two trainers' hyperparameters of a block; empty: none. Null: the optimizer's
/// own.
std::string describeDifference(const ParameterBlock& block, const std::shared_ptr<const Hyperparameters>& one,
                               const std::shared_ptr<const Hyperparameters>& other) {
  if (one == other) return "";
  const Optimizer& optimizer = block.optimizer();
  if (!one || !other) {
    std::vector<double> own = optimizer.hyperparameters();
    own.front() = optimizer.learningRate(block.version().value + 1);
    for (const std::vector<double>& set : (one ? one : other)->sets) {
      std::string difference =
          one ? describeDifference(optimizer, set, own) : describeDifference(optimizer, own, set);
      if (!difference.empty()) return difference;
    }
    return "";
  }
  if (one->runs != other->runs || one->sets.size() != other->sets.size()) {
    return "their parameter groups are different ones";
  }
  for (size_t set = 0; set < one->sets.size(); set++) {
    std::string difference = describeDifference(optimizer, one->sets[set], other->sets[set]);
    if (!difference.empty()) return difference;
  }
  return "";
}

/// The error for the contributors of a round that failed.
Error failureOf(const RoundEnd& end, const std::vector<RoundTally::Member>& members,
                const RoundRules& rules) {
  std::string missing;
  for (const auto& member : members) {
    missing += (missing.empty() ? "" : ", ") + std::to_string(member.rank.value);
  }
  const bool timedOut = end.how == RoundEnd::How::timedOut;
  const uint32_t least = rules.grace ? rules.least : rules.quorum;
  const std::string needed =
      timedOut ? "" : "; policy.quorum or the aggregator requires " + std::to_string(least);
  return {timedOut ? ErrorCode::deadlineExceeded : ErrorCode::notReady,
          "round " + std::to_string(end.round) + " " + std::string(describe(end.how)) + " with " +
              std::to_string(end.contributors.size()) + " contribution(s)" +
              (missing.empty() ? "" : ", without ranks " + missing) + needed};
}

}  // namespace

PolicyPlan Sync::read(ConfigReader in) {
  RoundOptions options = readRounds(in);
  constexpr std::string_view kNoStaleness =
      "requires an asynchronous policy; every gradient of a round is computed from the newest parameters";
  const Modifiers modifiers =
      readModifiers(in, {.staleness = kNoStaleness, .delayCompensation = kNoStaleness});
  options.clip = modifiers.clip;
  PolicyPlan plan{
      .make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
      .changesGradients = modifiers.changesGradients(),
      .rounds = planOf(options)};
  if (options.aggregator->compares()) {
    plan.tablesUnsupported =
        fmt::format("aggregator {} compares gradients, and few trainers have the same rows; use mean",
                    options.aggregator->name());
  }
  plan.needsWholeGradient = modifiers.needsWholeGradient();
  if (const std::string why = wholeGradientReason(*options.aggregator); !why.empty()) {
    plan.needsWholeGradient = why;
  }
  return plan;
}

Sync::Sync(const PolicyScope& scope, RoundOptions options)
    : options_(std::move(options)),
      staging_(scope.staging),
      snapshots_(scope.snapshots),
      updater_(scope, options_),
      metrics_(scope.roundMetrics),
      moments_(scope.moments),
      group_(scope.group),
      resumes_(scope.resumeWithin.has_value()),
      followsPolicy_(scope.started),
      rounds_(options_.rules) {
  if (scope.started) {
    rounds_.startWithQuorum();
  } else if (scope.resumeWithin) {
    rounds_.startWithin(*scope.resumeWithin, scope.previousTrainers);
  }
  for (const ParameterBlock* block : blocks()) first_.push_back(static_cast<int64_t>(block->version().value));
}

kj::Promise<void> Sync::join(const TrainerRef& trainer) {
  std::optional<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    trainers_[trainer.session] = Trainer{trainer, {}};
    if (auto end = rounds_.join(trainer.session, now())) ended = take(std::move(*end));
  }
  return finish(std::move(ended));
}

kj::Promise<void> Sync::leave(SessionId session) {
  std::optional<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    trainers_.erase(session);
    tally_.forget(session);
    if (auto end = rounds_.leave(session, now())) ended = take(std::move(*end));
  }
  waits_.forget(session);
  return finish(std::move(ended));
}

kj::Promise<void> Sync::tick(TimePoint time) {
  std::optional<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (auto end = rounds_.tick(time)) ended = take(std::move(*end));
  }
  if (moments_) moments_->expire(time);
  return finish(std::move(ended));
}

bool Sync::started() const {
  const std::lock_guard lock(mutex_);
  return rounds_.started();
}

kj::Promise<void> Sync::quiesce() {
  // Evaluated eagerly, so that a caller that quiesces several groups does not hold one group's lock while it
  // waits for the next.
  return applying_.acquire().then([](ShardLock::Guard) {}).eagerlyEvaluate(nullptr);
}

kj::Promise<void> Sync::drain() {
  std::optional<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (auto end = rounds_.close(now())) ended = take(std::move(*end));
  }
  if (ended && ended->end.how != RoundEnd::How::closed) {
    // Contributions too few for the aggregator are dropped rather than refused, so that trainers continue.
    for (const auto& contribution : ended->contributions) {
      contribution->answer->fulfill(PushAnswer{PushOutcome::late, blocks().back()->version(), 0, 0});
    }
    ended.reset();
  }
  return finish(std::move(ended)).then([this] { return quiesce(); });
}

void Sync::endWaits(const Error& reason) {
  Contributions waiting;
  {
    const std::lock_guard lock(mutex_);
    ending_ = reason;
    for (auto& [session, contribution] : open_) waiting.push_back(contribution);
    open_.clear();
  }
  for (const auto& contribution : waiting) contribution->answer->fulfill(Result<PushAnswer>(reason));
  waits_.end(reason);
}

void Sync::retire() { waits_.end({ErrorCode::notReady, "another policy has taken over"}); }

kj::Promise<Result<RoundDue>> Sync::roundDue(SessionId session, Version version) {
  const std::lock_guard lock(mutex_);
  if (ending_) return Result<RoundDue>(*ending_);
  const int64_t round = static_cast<int64_t>(version.value) - first_.front();
  if (round < 0 || !trainers_.contains(session)) return Result<RoundDue>(RoundDue::closed);
  // A version that no round has reached counts for the open round, as for a push.
  auto due = waits_.add(session, std::min(static_cast<uint64_t>(round), rounds_.number()), roundState());
  if (!options_.lateRate) return due;
  return due.then([](Result<RoundDue> result) {
    // A late push counts in the next round, with a higher weight the earlier it arrives.
    return result.ok() ? Result<RoundDue>(RoundDue::closing) : result;
  });
}

std::optional<uint64_t> Sync::roundOf(size_t index, const ShardPush& push) const {
  if (push.total == 0) return kAnyRound;
  const auto version = static_cast<int64_t>(push.basis.value);
  if (version >= first_[index]) return static_cast<uint64_t>(version - first_[index]);
  return followsPolicy_ ? std::optional<uint64_t>(0) : std::nullopt;
}

size_t Sync::indexOf(const ParameterBlock& block) const {
  const auto found = std::ranges::lower_bound(blocks(), block.id(), {}, &ParameterBlock::id);
  return static_cast<size_t>(found - blocks().begin());
}

Status Sync::begin(const ParameterBlock& block, ShardPush& push) const {
  if (push.taken > 0 || push.dropped) return {};
  const std::lock_guard lock(mutex_);
  if (ending_) return *ending_;
  // A late gradient would be dropped, so it is not gathered. nullopt, a round that closed before this policy
  // started, compares less than any round.
  const std::optional<uint64_t> round = roundOf(indexOf(block), push);
  push.dropped = options_.lateRate ? !round : round < rounds_.number();
  return {};
}

Status Sync::gather(const Shard& shard, ShardPush& push, uint64_t offset, const Gradient& gradient) {
  PSD_RETURN_IF_ERROR(begin(shard, push));
  if (push.gathered.empty() && !push.dropped) {
    PSD_ASSIGN_OR_RETURN(push.gathered, GatheredGradient::make(*staging_, shard.range().count));
  }
  if (!push.dropped) PSD_RETURN_IF_ERROR(push.gathered.put(shard.id(), offset, gradient));
  push.taken += gradient.size();
  return {};
}

kj::Promise<Result<PushAnswer>> Sync::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                           Gradient gradient) {
  if (Status gathered = gather(shard, push, offset, gradient); !gathered.ok()) {
    return Result<PushAnswer>(gathered.error());
  }
  const Result<PushAnswer> received(PushAnswer{PushOutcome::received, shard.version(), 0, 0});
  if (push.taken < push.total) return received;
  const size_t index = indexOf(shard);
  std::shared_ptr<Contribution> contribution = arrived(index, push);
  if (!contribution) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), 0, 0});
  ReadView view = std::exchange(push.gathered, {}).view();
  if (view.values.empty()) {
    return staged(contribution, [](Contribution&) { return Status(); }).then([received] { return received; });
  }
  return storePromise<Result<StagedGradient>>(shard,
                                              [&](ShardStorage::StageDone done) {
                                                shard.storage().stage(lane, std::move(view), std::move(done));
                                              })
      .then([this, index, contribution = std::move(contribution)](Result<StagedGradient> gradient) mutable {
        return staged(std::move(contribution), [&](Contribution& part) {
          if (gradient.ok()) part.shards[index] = *std::move(gradient);
          return gradient.status();
        });
      })
      .then([received] { return received; });
}

kj::Promise<Result<PushAnswer>> Sync::pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                               RowGradient slice) {
  if (Status begun = begin(shard, push); !begun.ok()) return Result<PushAnswer>(begun.error());
  StagedRows rows;
  if (push.dropped) {
    push.taken += slice.rows.ids.size();
  } else {
    auto gathered = gatherRows(*staging_, shard, push, first, slice, RowRetention::copied);
    if (!gathered.ok()) return Result<PushAnswer>(gathered.error());
    if (*gathered) rows = std::move((*gathered)->staged);
  }
  const Result<PushAnswer> received(PushAnswer{PushOutcome::received, shard.version(), 0, 0});
  if (push.taken < push.total) return received;
  const size_t index = indexOf(shard);
  std::shared_ptr<Contribution> contribution = arrived(index, push);
  if (!contribution) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), 0, 0});
  return staged(std::move(contribution),
                [this, index, rows = std::move(rows)](Contribution& part) {
                  part.rows[index - updater_.shardCount()] = rows;
                  return Status();
                })
      .then([received] { return received; });
}

std::shared_ptr<Sync::Contribution> Sync::arrived(size_t index, ShardPush& push) {
  const std::lock_guard lock(mutex_);
  const auto trainer = trainers_.find(push.trainer.session);
  // Parts that a previous policy has decided do not arrive.
  if (trainer == trainers_.end() || push.known > 0) return nullptr;
  auto& building = trainer->second.building;
  building.erase(building.begin(), building.lower_bound(push.step));  // older steps are abandoned
  std::shared_ptr<Contribution> contribution = building[push.step];
  const std::optional<uint64_t> round = push.dropped ? std::nullopt : roundOf(index, push);
  if (!contribution) {
    contribution = building[push.step] = std::make_shared<Contribution>();
    contribution->trainer = push.trainer;
    contribution->samples = push.samples;
    contribution->localSteps = push.localSteps;
    contribution->leadRound = push.leadRound;
    contribution->shares = push.shares;
    contribution->step = push.step;
    contribution->round = round;
    contribution->shards.resize(updater_.shardCount());
    contribution->rows.resize(blocks().size() - updater_.shardCount());
    contribution->hyperparameters.resize(blocks().size());
  }
  if (push.hyperparameters) {  // what is without a gradient here may have one elsewhere
    contribution->hyperparameters[index] =
        std::make_shared<const Hyperparameters>(push.hyperparameters->withAllSteps());
  }
  contribution->round = std::min(contribution->round, round);
  if (++contribution->arrived == blocks().size()) {
    building.erase(push.step);
    auto answer = kj::newPromiseAndCrossThreadFulfiller<Result<PushAnswer>>();
    contribution->answer = kj::mv(answer.fulfiller);
    push.pendingAnswer = kj::mv(answer.promise);
  }
  return contribution;
}

kj::Promise<void> Sync::staged(std::shared_ptr<Contribution> contribution,
                               const std::function<Status(Contribution&)>& put) {
  std::optional<Result<PushAnswer>> known;
  std::optional<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = put(*contribution); !status.ok()) contribution->failed = status.error();
    if (++contribution->staged < blocks().size()) return kj::READY_NOW;
    known = submit(contribution, ended);
  }
  if (known) contribution->answer->fulfill(*std::move(known));
  return finish(std::move(ended));
}

std::optional<Result<PushAnswer>> Sync::submit(const std::shared_ptr<Contribution>& contribution,
                                               std::optional<Ended>& ended) {
  if (ending_) return Result<PushAnswer>(*ending_);
  rounds_.gradientArrived(contribution->trainer.session, now());
  if (contribution->failed) return Result<PushAnswer>(*contribution->failed);
  const SessionId session = contribution->trainer.session;
  const Result<PushAnswer> late(PushAnswer{PushOutcome::late, blocks().back()->version(), 0, 0});
  if (!contribution->round) return late;
  // A basis that no round has reached was not read from this daemon; the gradient counts for the open round.
  const uint64_t round = std::min(*contribution->round, rounds_.number());
  contribution->round = round;
  if (options_.lateRate) contribution->late = rounds_.number() - round;
  if (round == rounds_.number()) {  // an older gradient is late or, with policy.late, one of an earlier round
    if (Status agrees = checkAgrees(*contribution); !agrees.ok()) return Result<PushAnswer>(agrees.error());
  }
  SyncRounds::Answer answer = rounds_.contribute(session, round + contribution->late, now());
  if (answer.contribution != SyncRounds::Contribution::taken) return late;
  open_[session] = contribution;
  if (answer.end) ended = take(*std::move(answer.end));
  return {};
}

Status Sync::checkAgrees(const Contribution& contribution) const {
  for (const auto& [session, other] : open_) {
    if (other->late > 0 || session == contribution.trainer.session) continue;
    for (size_t i = 0; i < blocks().size(); i++) {
      const std::string difference =
          describeDifference(*blocks()[i], contribution.hyperparameters[i], other->hyperparameters[i]);
      if (difference.empty()) continue;
      return {ErrorCode::invalidArgument,
              fmt::format(
                  "round {}: rank {} and rank {} step differently: {}; the trainers of a round set the "
                  "same hyperparameters, so share what a scheduler decides by, such as rank 0's loss",
                  rounds_.number(), contribution.trainer.rank.value, other->trainer.rank.value, difference)};
    }
    return {};  // those in the round agree
  }
  return {};
}

Sync::Ended Sync::take(RoundEnd end) {
  Ended ended{std::move(end), {}, {}};
  for (auto& [session, contribution] : open_) ended.contributions.push_back(std::move(contribution));
  open_.clear();
  // Of two processes of one rank, the older one stays first, as open_ is ordered by session.
  std::stable_sort(ended.contributions.begin(), ended.contributions.end(),
                   [](const auto& a, const auto& b) { return a->trainer.rank < b->trainer.rank; });
  for (SessionId missing : ended.end.missing) {
    if (auto found = trainers_.find(missing); found != trainers_.end()) {
      ended.missing.push_back({missing, found->second.ref.rank});
    }
  }
  if (ended.end.how == RoundEnd::How::closed) note(ended);
  return ended;
}

void Sync::note(const Ended& ended) {
  std::vector<RoundTally::Member> contributors;
  std::vector<Rank> late;
  for (const auto& contribution : ended.contributions) {
    contributors.push_back({contribution->trainer.session, contribution->trainer.rank});
    if (contribution->late > 0) late.push_back(contribution->trainer.rank);
  }
  std::optional<double> grace;
  if (options_.rules.grace) grace = ended.end.graceSeconds;
  tally_.note(contributors, ended.missing, ended.end.seconds, grace);
  if (metrics_) metrics_->lateCounted.add(late.size());
  tally_.noteLate(std::move(late));
  if (!metrics_) return;
  metrics_->seconds.record(ended.end.seconds);
  if (grace) metrics_->graceSeconds.record(*grace);
  metrics_->leftOut.add(ended.end.missing.size());
}

kj::Promise<void> Sync::finish(std::optional<Ended> ended) {
  waits_.notify([this] {
    const std::lock_guard lock(mutex_);
    return roundState();
  }());
  // No contributions: endWaits() has answered them.
  if (!ended || ended->contributions.empty()) return kj::READY_NOW;
  if (ended->end.how != RoundEnd::How::closed) {
    answer(*ended, Result<uint64_t>(failureOf(ended->end, ended->missing, options_.rules)));
    return kj::READY_NOW;
  }
  auto round = std::make_shared<const Ended>(*std::move(ended));
  return applying_.acquire().then([this, round](ShardLock::Guard guard) {
    return applyRound(round).then([this, round, guard = kj::mv(guard)](Result<uint64_t> logged) mutable {
      answer(*round, logged);
      if (!moments_ || !logged.ok()) return;
      if (const auto moment = momentOf(*round)) return moments_->applied(group_, *moment, kj::mv(guard));
      moments_->unnamed(group_);
    });
  });
}

std::optional<RoundMoment> Sync::momentOf(const Ended& ended) {
  const auto first =
      std::ranges::find_if(ended.contributions, [](const auto& each) { return each->late == 0; });
  if (first == ended.contributions.end() || (*first)->leadRound == 0) return {};
  const TrainerRef& trainer = (*first)->trainer;
  return RoundMoment{(*first)->leadRound,
                     momentIdOf(trainer.rank.value, trainer.incarnation, (*first)->step.value)};
}

kj::Promise<Result<uint64_t>> Sync::applyRound(const std::shared_ptr<const Ended>& round) {
  RoundUpdater::Round parts = std::make_shared<const std::vector<std::shared_ptr<RoundPart>>>(
      round->contributions.begin(), round->contributions.end());
  return updater_.apply(std::move(parts), first_).then([this](RoundUpdater::Outcome outcome) {
    // Blocks that lack the round fall behind the round count; without this every later gradient would seem
    // late.
    const std::lock_guard lock(mutex_);
    for (size_t i = outcome.applied; i < first_.size(); i++) first_[i]--;
    return std::move(outcome.logged);
  });
}

void Sync::answer(const Ended& ended, const Result<uint64_t>& logged) const {
  for (size_t i = 0; i < ended.contributions.size(); i++) {
    const PushAnswer applied{PushOutcome::applied, blocks().back()->version(), 0,
                             i == 0 ? blocks().size() : 0, logged.ok() ? *logged : 0};
    Result<PushAnswer> answer =
        logged.ok() ? Result<PushAnswer>(applied) : Result<PushAnswer>(logged.error());
    ended.contributions[i]->answer->fulfill(std::move(answer));
  }
}

kj::Promise<Result<PullAnswer>> Sync::pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                           uint64_t count) {
  return pullSnapshot(*snapshots_, shard, lane, pull, offset, count);
}

kj::Promise<Result<RowsAnswer>> Sync::pullRows(RowShard& shard, const std::optional<TrainerRef>&, RowIds rows,
                                               std::span<float> out) {
  return readRowsUnderLock(shard, rows, out);
}

std::vector<Waiting> Sync::waiting() const {
  const std::lock_guard lock(mutex_);
  if (open_.empty()) return {};
  Waiting waiting{"round " + std::to_string(rounds_.number()), {}, {}, rounds_.joinsNeeded()};
  for (const auto& [session, contribution] : open_) waiting.waiters.push_back(session);
  for (const Awaited& awaited : rounds_.waitingFor())
    waiting.awaited.push_back({awaited.session, awaited.since});
  return {waiting};
}

RoundsReport Sync::report() const {
  const std::lock_guard lock(mutex_);
  RoundsReport report = tally_.report();
  report.closed = rounds_.number();
  for (const auto& [session, contribution] : open_) report.here.push_back(contribution->trainer.rank);
  if (const auto until = rounds_.closingUntil()) {
    const std::chrono::duration<double> left = *until - now();
    report.graceLeftSeconds = std::max(left.count(), 0.0);
  }
  return report;
}

}  // namespace psd
