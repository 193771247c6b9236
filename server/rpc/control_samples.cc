// The side of Control that deals samples to trainers.

#include <string>

#include <spdlog/spdlog.h>

#include "server/rpc/control.h"
#include "server/rpc/push_server.h"

namespace psd {
namespace {

constexpr size_t kOpenStepsMost = 128;  // of a trainer; more than it leaves unanswered

}  // namespace

Status Control::agreeOnSamples(const SamplesWish& wish) {
  if (wish.samples == 0 || wish.epochs == 0 || wish.count == 0) {
    return {ErrorCode::invalidArgument, "no samples are asked for: samples, epochs and count are at least 1"};
  }
  const bool same = plan_ && plan_->samples() == wish.samples && plan_->epochs() == wish.epochs;
  if (same) return {};
  if (plan_ && !plan_->finished() && sessions_.size() > 1) {
    return {ErrorCode::invalidArgument, "this trainer trains " + std::to_string(wish.epochs) + " epochs of " +
                                            std::to_string(wish.samples) + " samples; the others train " +
                                            std::to_string(plan_->epochs()) + " of " +
                                            std::to_string(plan_->samples())};
  }
  plan_.emplace(wish.samples, wish.epochs, wish.firstEpoch);
  spdlog::info("dealing {} epochs of {} samples{}", wish.epochs, wish.samples,
               wish.firstEpoch == 0 ? "" : ", from epoch " + std::to_string(wish.firstEpoch + 1) + " on");
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
  if (auto range = plan_->take(session, wish.step, wish.count)) return Samples{range, false};
  if (plan_->finished()) return Samples{std::nullopt, true};
  return std::nullopt;
}

kj::Promise<Result<Samples>> Control::takeSamples(SessionId session, SamplesWish wish) {
  if (stopping()) return Result<Samples>(stoppingError());
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return Result<Samples>(ErrorCode::sessionEnded, "the session has ended");
  if (Status agreed = agreeOnSamples(wish); !agreed.ok()) return Result<Samples>(agreed.error());
  if (plan_->openSteps(session) > kOpenStepsMost) {
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
  if (!plan_) return;
  const bool before = plan_->finished();
  if (applied) {
    plan_->done(session, step);
  } else {
    plan_->giveBack(session, step);
  }
  if (!before && plan_->finished()) {
    spdlog::info("all epochs are done: {} samples", plan_->doneCount());
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
  if (!plan_) return;
  // What is under way is told of by stepOver() before this comes.
  tasks_.add(pushes->whenLanded().then([this, session, pushes] {
    if (!plan_) return;  // the run is over
    for (Step step : plan_->leave(session)) pushes->drop(step);
    dealSamples();
  }));
}

}  // namespace psd
