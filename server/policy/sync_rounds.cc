#include "server/policy/sync_rounds.h"

#include "common/types/invariant_check.h"

namespace psd {

std::optional<RoundEnd> SyncRounds::join(SessionId session, TimePoint now) {
  const InvariantCheck check(*this);
  live_.insert(session);
  if (!opened_) opened_ = now;
  if (!firstContribution_ || !started_ || !hasQuorum()) awaitAll(now);
  if (startWithin_ && !startBy_) startBy_ = now + *startWithin_;
  startWith(startTrainers_, now);
  return settle(now);
}

void SyncRounds::startWith(size_t trainers, TimePoint now) {
  if (started_ || live_.size() < trainers) return;
  started_ = true;
  start_ = now;
}

std::optional<RoundEnd> SyncRounds::leave(SessionId session, TimePoint now) {
  const InvariantCheck check(*this);
  if (live_.erase(session) == 0) return {};
  awaited_.erase(session);
  measured_.forget(session);
  if (!hasQuorum()) awaitAll(now);
  const auto ended = settle(now);
  if (live_.empty()) opened_.reset();
  return ended;
}

SyncRounds::Answer SyncRounds::contribute(SessionId session, uint64_t round, TimePoint now) {
  const InvariantCheck check(*this);
  if (!live_.contains(session)) return {Contribution::notJoined, {}};
  if (round < number_) return {Contribution::late, {}};
  if (round > number_) return {Contribution::ahead, {}};
  if (!contributors_.insert(session).second) return {Contribution::repeated, {}};
  awaited_.erase(session);
  if (!firstContribution_) firstContribution_ = now;
  return {Contribution::taken, settle(now)};
}

std::optional<RoundEnd> SyncRounds::close(TimePoint now) {
  const InvariantCheck check(*this);
  if (!firstContribution_) return {};
  return end(enough() ? RoundEnd::How::closed : RoundEnd::How::quorumLost, now);
}

std::optional<RoundEnd> SyncRounds::tick(TimePoint now) {
  const InvariantCheck check(*this);
  const auto until = deadline();
  if (!until || now < *until) return {};
  if (!started_) {
    // With a grace period, rounds can close below the quorum if no more trainers are joined.
    startTrainers_ = rules_.grace ? 1 : rules_.quorum;
    startWith(startTrainers_, now);
    return settle(now);
  }
  const bool graceOver = closing_ && now >= closing_->until;
  if (graceOver || (rules_.proceedOnTimeout && enough())) return end(RoundEnd::How::closed, now);
  return end(reachable() ? RoundEnd::How::timedOut : RoundEnd::How::quorumLost, now);
}

std::optional<TimePoint> SyncRounds::deadline() const {
  if (!started_) return startBy_;
  if (!firstContribution_) return {};
  const std::optional<TimePoint> until = closingUntil();
  if (!rules_.timeout) return until;
  const TimePoint timeout = std::max(*firstContribution_, start_) + *rules_.timeout;
  return until ? std::min(*until, timeout) : timeout;
}

std::vector<Awaited> SyncRounds::waitingFor() const {
  std::vector<Awaited> found;
  if (!firstContribution_) return found;
  for (const auto& [session, admitted] : awaited_) {
    found.push_back({session, std::max(admitted, *firstContribution_)});
  }
  return found;
}

uint32_t SyncRounds::joinsNeeded() const {
  if (!firstContribution_) return 0;
  const auto missing = [](size_t wanted, size_t there) {
    return static_cast<uint32_t>(wanted > there ? wanted - there : 0);
  };
  return std::max(started_ ? 0 : missing(startTrainers_, live_.size()),
                  missing(needed(), contributors_.size() + awaited_.size()));
}

void SyncRounds::awaitAll(TimePoint now) {
  for (SessionId session : live_) {
    if (!contributors_.contains(session)) awaited_.try_emplace(session, now);
  }
}

std::optional<RoundEnd> SyncRounds::settle(TimePoint now) {
  if (!firstContribution_) return {};
  if (started_ && enough() && awaited_.size() <= rules_.backupTrainers) {
    return end(RoundEnd::How::closed, now);
  }
  if (rules_.grace && started_ && enough()) {
    if (!closing_) closing_ = closingFrom(now);
    if (now >= closing_->until) return end(RoundEnd::How::closed, now);
  }
  const bool failed = live_.empty() || (started_ && !reachable() && !rules_.timeout);
  if (failed) return end(RoundEnd::How::quorumLost, now);
  return {};
}

SyncRounds::Closing SyncRounds::closingFrom(TimePoint now) {
  MeasuredGrace::Duration grace = rules_.graceMeasured ? MeasuredGrace::Duration() : *rules_.grace;
  for (const auto& [session, admitted] : awaited_) {
    measured_.missing(session, now);
    if (rules_.graceMeasured) grace = std::max(grace, measured_.of(session));
  }
  return {now, now + grace};
}

RoundEnd SyncRounds::end(RoundEnd::How how, TimePoint now) {
  RoundEnd ended{number_, how, {contributors_.begin(), contributors_.end()}, {}, 0, 0};
  for (const auto& [session, admitted] : awaited_) ended.missing.push_back(session);
  if (opened_) ended.seconds = std::chrono::duration<double>(now - *opened_).count();
  if (closing_) ended.graceSeconds = std::chrono::duration<double>(now - closing_->since).count();
  closing_.reset();
  opened_ = now;
  if (how == RoundEnd::How::closed) number_++;
  contributors_.clear();
  firstContribution_.reset();
  awaited_.clear();
  awaitAll(now);
  return ended;
}

std::string SyncRounds::checkInvariants() const {
  for (const auto& [session, admitted] : awaited_) {
    if (!live_.contains(session)) return "the round waits for a trainer that is not joined";
    if (contributors_.contains(session)) return "the round waits for a trainer that has contributed";
  }
  if (firstContribution_.has_value() == contributors_.empty()) {
    return "a first contribution without a contributor, or the reverse";
  }
  if (live_.empty() && firstContribution_) return "a round is open without a trainer";
  if (opened_.has_value() == live_.empty()) return "a round is open without a trainer, or the reverse";
  if (!firstContribution_ && awaited_.size() != live_.size()) {
    return "a round without a contribution does not wait for every trainer";
  }
  if (number_ > 0 && !started_) return "a round has closed before the start";
  if (closing_ && !(rules_.grace && started_ && firstContribution_ && enough())) {
    return "a grace period without a quorum";
  }
  if (firstContribution_ && started_ && enough() && awaited_.size() <= rules_.backupTrainers) {
    return "a round that has all it waits for is open";
  }
  return "";
}

std::string_view describe(RoundEnd::How how) {
  switch (how) {
    case RoundEnd::How::closed: return "closed";
    case RoundEnd::How::timedOut: return "timed out";
    case RoundEnd::How::quorumLost: return "lost its quorum";
  }
  return "?";
}

}  // namespace psd
