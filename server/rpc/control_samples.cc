// The side of Control that deals samples to trainers.

#include <algorithm>
#include <string>

#include <spdlog/spdlog.h>

#include "server/rpc/control.h"
#include "server/rpc/push_server.h"

namespace psd {
namespace {

constexpr size_t kOpenStepsMost = 128;  // of a trainer; more than it leaves unanswered

}  // namespace

void Control::recallPlan() {
  auto plan = durability_->samples()->lockExclusive();
  if (!plan->begun()) return;
  const PlanTerms& terms = plan->terms();
  spdlog::info("going on with {} epochs of {} samples: {} are done, {} under way", terms.epochs,
               terms.samples, plan->doneCount(), plan->underWayCount());
  if (plan->finished() && !config_->exitWhenDone) plan->close();
  leases_.grant(kThoseBefore);
  leases_.disconnected(kThoseBefore);
}

void Control::closeFinishedPlan() {
  auto plan = durability_->samples()->lockExclusive();
  if (plan->finished()) plan->close();
}

void Control::giveUpThoseBefore() {
  leases_.release(kThoseBefore);
  durability_->samples()->lockExclusive()->giveUpAway();
  dealSamples();
}

void Control::recallSamples(SessionId session, const std::vector<HeldSamples>& held) {
  const Session& entry = sessions_.at(session);
  if (entry.candidate.returns) return;  // takeSamplesBack() has seen to them
  const TrainerLife life{entry.candidate.rank, entry.candidate.incarnation};
  SamplePlan::Return back;
  {
    auto plan = durability_->samples()->lockExclusive();
    back = plan->comeBack(session, life, held);
    for (const SampleDeal& deal : back.claimed) durability_->dealt({plan->terms(), deal});
  }
  for (const Step step : back.lost) entry.life.pushes->drop(step);
  if (!back.lost.empty()) dealSamples();
}

Status Control::agreeOnSamples(SessionId session, const SamplesWish& wish) {
  if (wish.samples == 0 || wish.epochs == 0 || wish.count == 0) {
    return {ErrorCode::invalidArgument, "no samples are asked for: samples, epochs and count are at least 1"};
  }
  Session& trainer = sessions_.at(session);
  auto plan = durability_->samples()->lockExclusive();
  const PlanTerms& terms = plan->terms();
  const bool same = terms.samples == wish.samples && terms.epochs == wish.epochs;
  // One that was in before the daemon died, or was lost, is still of the plan that has ended since.
  const bool goesOn = same && (!plan->closed() || trainer.candidate.lastDaemon != 0);
  if (!goesOn) {
    const bool othersTrain = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& other) {
      return other.first != session && other.second.takesSamples;
    });
    if (!plan->finished() && othersTrain) {
      return {ErrorCode::invalidArgument, "this trainer trains " + std::to_string(wish.epochs) +
                                              " epochs of " + std::to_string(wish.samples) +
                                              " samples; the others train " + std::to_string(terms.epochs) +
                                              " of " + std::to_string(terms.samples)};
    }
    PSD_RETURN_IF_ERROR(plan->begin(wish.samples, wish.epochs, wish.firstEpoch));
    spdlog::info("dealing {} epochs of {} samples{}", wish.epochs, wish.samples,
                 wish.firstEpoch == 0 ? "" : ", from epoch " + std::to_string(wish.firstEpoch + 1) + " on");
  }
  trainer.takesSamples = true;
  return {};
}

Result<uint32_t> Control::countFor(SessionId session, const SamplesWish& wish) {
  if (wish.nominal == 0) {
    batchSizes_.leave(session);
    return wish.count;
  }
  PSD_RETURN_IF_ERROR(batchSizes_.report(session, {wish.nominal, wish.count, wish.sampleSeconds}));
  return batchSizes_.sizeFor(session);
}

std::optional<Samples> Control::samplesFor(SessionId session, const SamplesWish& wish) {
  const Candidate& trainer = sessions_.at(session).candidate;
  const TrainerLife life{trainer.rank, trainer.incarnation};
  auto plan = durability_->samples()->lockExclusive();
  if (const auto deal = plan->take(session, life, wish.step, wish.count)) {
    durability_->dealt({plan->terms(), *deal});
    return Samples{deal->range, false};
  }
  if (plan->finished()) return Samples{std::nullopt, true};
  return std::nullopt;
}

kj::Promise<Result<Samples>> Control::takeSamples(SessionId session, SamplesWish wish) {
  if (stopping()) return Result<Samples>(stoppingError());
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return Result<Samples>(ErrorCode::sessionEnded, "the session has ended");
  if (Status agreed = agreeOnSamples(session, wish); !agreed.ok()) return Result<Samples>(agreed.error());
  if (durability_->samples()->lockExclusive()->openSteps(session) > kOpenStepsMost) {
    return Result<Samples>(ErrorCode::overloaded, "samples were dealt for " + std::to_string(kOpenStepsMost) +
                                                      " steps whose gradients have not come");
  }
  const Result<uint32_t> count = countFor(session, wish);
  if (!count.ok()) return Result<Samples>(count.error());
  wish.count = *count;
  if (auto samples = samplesFor(session, wish)) return Result<Samples>(*samples);
  if (!wish.wait) return Result<Samples>(Samples{});
  // It makes no step until others are done, so they must not wait for it.
  if (!entry->second.wish) leavePolicies(session);
  entry->second.wish = wish;
  auto waiter = kj::newPromiseAndFulfiller<Result<Samples>>();
  entry->second.forSamples = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

void Control::stepOver(SessionId session, Step step, bool applied) {
  {
    auto plan = durability_->samples()->lockExclusive();
    const bool before = plan->finished();
    if (applied) {
      plan->done(session, step);
    } else {
      plan->giveBack(session, step);
    }
    if (!before && plan->finished()) {
      spdlog::info("all epochs are done: {} samples", plan->doneCount());
    }
  }
  dealSamples();
}

void Control::dealSamples() {
  for (auto& [session, entry] : sessions_) {
    if (!entry.wish) continue;
    if (auto samples = samplesFor(session, *entry.wish)) answerWish(session, entry, *samples);
  }
}

void Control::answerWish(SessionId session, Session& entry, Result<Samples> answer) {
  entry.wish.reset();
  joinPolicies({session, entry.candidate.rank, entry.candidate.incarnation});
  KJ_IF_MAYBE (waiter, entry.forSamples) {
    (*waiter)->fulfill(std::move(answer));
  }
  entry.forSamples = nullptr;
}

void Control::takeSamplesBack(SessionId session, const std::shared_ptr<PushServer>& pushes) {
  // What is under way is told of by stepOver() before this comes.
  tasks_.add(pushes->whenLanded().then([this, session, pushes] {
    for (Step step : durability_->samples()->lockExclusive()->leave(session)) pushes->drop(step);
    dealSamples();
  }));
}

}  // namespace psd
