#include "server/coordination/sample_assigner.h"

#include <algorithm>
#include <string>

#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr size_t kOpenStepsMost = 128;  // per trainer; more than it leaves unanswered

}  // namespace

void SampleAssigner::taskFailed(kj::Exception&& exception) {
  if (exception.getType() == kj::Exception::Type::DISCONNECTED) return;  // the daemon ends
  spdlog::error("cannot reassign the samples of a departed trainer: {}", exception.getDescription().cStr());
}

bool SampleAssigner::recall(bool isWholeRun) {
  auto plan = this->plan().lockExclusive();
  if (!plan->begun()) return false;
  const PlanTerms& terms = plan->terms();
  spdlog::info("resuming {} epochs of {} samples: {} are done, {} in flight", terms.epochs, terms.samples,
               plan->doneCount(), plan->underWayCount());
  if (plan->finished() && !isWholeRun) plan->close();
  return true;
}

void SampleAssigner::dropPriorRunTrainers() {
  plan().lockExclusive()->returnAllAway();
  assign();
}

void SampleAssigner::closeFinished() {
  auto plan = this->plan().lockExclusive();
  if (plan->finished()) plan->close();
}

void SampleAssigner::rejoin(SessionId session, ProcessId process, const Candidate& candidate) {
  trainers_[session] = {.id = process,
                        .process = {candidate.rank, candidate.incarnation},
                        .wasInBefore = candidate.lastDaemon != 0};
}

void SampleAssigner::join(SessionId session, ProcessId process, const Candidate& candidate,
                          const std::vector<HeldSamples>& held) {
  rejoin(session, process, candidate);
  SamplePlan::Return back;
  {
    auto plan = this->plan().lockExclusive();
    back = plan->reclaim(process, trainers_[session].process, held);
    for (const SampleAssignment& assignment : back.claimed) hosting_.assigned(plan->terms(), assignment);
  }
  for (const Step step : back.lost) hosting_.drop(process, step);
  if (!back.lost.empty()) assign();
}

void SampleAssigner::leave(SessionId session) {
  batchSizes_.leave(session);
  const ProcessId process = trainers_.at(session).id;
  trainers_.erase(session);
  // stepOver() reports the pushes in flight before this promise resolves.
  tasks_.add(hosting_.whenPushesDrained(process).then([this, process] {
    const bool isBack = std::any_of(trainers_.begin(), trainers_.end(),
                                    [&](const auto& entry) { return entry.second.id == process; });
    if (isBack) return;
    for (Step step : plan().lockExclusive()->leave(process)) hosting_.drop(process, step);
    assign();
  }));
}

Status SampleAssigner::agree(SessionId session, const SamplesRequest& request) {
  if (request.samples == 0 || request.epochs == 0 || request.count == 0) {
    return {ErrorCode::invalidArgument, "no samples requested: samples, epochs and count must be at least 1"};
  }
  Trainer& trainer = trainers_.at(session);
  auto plan = this->plan().lockExclusive();
  const PlanTerms& terms = plan->terms();
  const bool same = terms.samples == request.samples && terms.epochs == request.epochs;
  // A trainer joined before the daemon died, or lost since, still belongs to the plan that has ended.
  const bool continuesRun = same && (!plan->closed() || trainer.wasInBefore);
  if (!continuesRun) {
    const bool othersTrain = std::any_of(trainers_.begin(), trainers_.end(), [&](const auto& other) {
      return other.first != session && other.second.takes;
    });
    if (!plan->finished() && othersTrain) {
      return {ErrorCode::invalidArgument, "this trainer trains " + std::to_string(request.epochs) +
                                              " epochs of " + std::to_string(request.samples) +
                                              " samples; the others train " + std::to_string(terms.epochs) +
                                              " of " + std::to_string(terms.samples)};
    }
    PSD_RETURN_IF_ERROR(plan->begin(request.samples, request.epochs, request.firstEpoch));
    spdlog::info(
        "assigning {} epochs of {} samples{}", request.epochs, request.samples,
        request.firstEpoch == 0 ? "" : ", from epoch " + std::to_string(request.firstEpoch + 1) + " on");
  }
  trainer.takes = true;
  return {};
}

Result<uint32_t> SampleAssigner::countFor(SessionId session, const SamplesRequest& request) {
  if (request.nominal == 0) {
    batchSizes_.leave(session);
    return request.count;
  }
  PSD_RETURN_IF_ERROR(batchSizes_.report(session, {request.nominal, request.count, request.sampleSeconds}));
  return batchSizes_.sizeFor(session);
}

std::optional<Samples> SampleAssigner::samplesFor(const Trainer& trainer, const SamplesRequest& request) {
  auto plan = this->plan().lockExclusive();
  if (const auto assignment = plan->take(trainer.id, trainer.process, request.step, request.count)) {
    hosting_.assigned(plan->terms(), *assignment);
    return Samples{assignment->range, false};
  }
  if (plan->finished()) return Samples{std::nullopt, true};
  return std::nullopt;
}

kj::Promise<Result<Samples>> SampleAssigner::take(SessionId session, SamplesRequest request) {
  return find(session, std::move(request))
      .then([this](Result<Samples> samples) -> kj::Promise<Result<Samples>> {
        if (!samples.ok() || !samples->range) return samples;
        return hosting_.whenAssigned().then([samples = std::move(samples)] { return samples; });
      });
}

kj::Promise<Result<Samples>> SampleAssigner::find(SessionId session, SamplesRequest request) {
  if (ended_) return Result<Samples>(*ended_);
  const auto entry = trainers_.find(session);
  if (entry == trainers_.end()) return Result<Samples>(ErrorCode::sessionEnded, "the session has ended");
  if (Status agreed = agree(session, request); !agreed.ok()) return Result<Samples>(agreed.error());
  if (plan().lockExclusive()->openSteps(entry->second.id) > kOpenStepsMost) {
    return Result<Samples>(
        ErrorCode::overloaded,
        "samples are assigned to " + std::to_string(kOpenStepsMost) + " steps without a gradient");
  }
  const Result<uint32_t> count = countFor(session, request);
  if (!count.ok()) return Result<Samples>(count.error());
  request.count = *count;
  if (auto samples = samplesFor(entry->second, request)) return Result<Samples>(*samples);
  if (!request.wait || hurried_) return Result<Samples>(Samples{});
  // A waiting trainer makes no step until others are done, so rounds must not wait for it.
  if (!entry->second.request) hosting_.excludeFromRounds(session);
  entry->second.request = request;
  auto waiter = kj::newPromiseAndFulfiller<Result<Samples>>();
  entry->second.waiter = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

void SampleAssigner::stepOver(ProcessId process, Step step, bool applied) {
  {
    auto plan = this->plan().lockExclusive();
    const bool before = plan->finished();
    if (applied) {
      plan->done(process, step);
    } else {
      plan->returnSamples(process, step);
    }
    if (!before && plan->finished()) {
      spdlog::info("all epochs are done: {} samples", plan->doneCount());
    }
  }
  assign();
}

void SampleAssigner::assign() {
  for (auto& [session, trainer] : trainers_) {
    if (!trainer.request) continue;
    if (auto samples = samplesFor(trainer, *trainer.request)) answer(session, trainer, *samples);
  }
}

void SampleAssigner::hurry(bool on) {
  hurried_ = on;
  if (!on) return;
  for (auto& [session, trainer] : trainers_) {
    if (trainer.request) answer(session, trainer, Samples{});
  }
}

void SampleAssigner::endWaits(const Error& reason) {
  ended_ = reason;
  for (auto& [session, trainer] : trainers_) {
    if (trainer.request) answer(session, trainer, reason);
  }
}

void SampleAssigner::answer(SessionId session, Trainer& trainer, Result<Samples> answer) {
  trainer.request.reset();
  hosting_.includeInRounds({session, trainer.process.rank, trainer.process.incarnation});
  KJ_IF_MAYBE (waiter, trainer.waiter) {
    (*waiter)->fulfill(std::move(answer));
  }
  trainer.waiter = nullptr;
}

std::optional<SamplesStatus> SampleAssigner::status() const {
  const auto plan = this->plan().lockExclusive();
  if (!plan->begun()) return std::nullopt;
  return SamplesStatus{
      .epoch = plan->terms().samples, .epochs = plan->terms().epochs, .done = plan->doneCount()};
}

}  // namespace psd
