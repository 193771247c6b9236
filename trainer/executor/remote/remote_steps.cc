#include "trainer/executor/remote/remote_steps.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "trainer/client/attempts.h"
#include "trainer/executor/remote/session_end.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPauseSlice{50};    // interval between checks for interrupt()
constexpr milliseconds kShortWait{1'000};  // overload shorter than this is not reported

Error interruptedError() { return {ErrorCode::interrupted, "the trainer was interrupted"}; }

}  // namespace

RemoteSteps::RemoteSteps(RemoteStepsOptions options)
    : options_(std::move(options)), incarnation_(std::max<uint64_t>(drawId(), 1)) {}

Result<std::unique_ptr<RemoteSteps>> RemoteSteps::connect(RemoteStepsOptions options) {
  std::unique_ptr<RemoteSteps> steps(new RemoteSteps(std::move(options)));
  const ConnectTimeout timeout(steps->options_.connectTimeout);
  PSD_RETURN_IF_ERROR(timeout.retries ? steps->connectUntil(Clock::now() + timeout.time)
                                      : steps->connectOnce(timeout.time));
  return steps;
}

Status RemoteSteps::connectOnce(milliseconds timeout) {
  if (interrupted_) return interruptedError();
  PSD_ASSIGN_OR_RETURN(
      auto trainer, ExecutorConnection::connect(options_.executor, timeout, options_.program, options_.tls));
  PSD_RETURN_IF_ERROR(checkSameModule(trainer->module()));
  const std::lock_guard hold(mutex_);
  if (interrupted_) return interruptedError();  // interrupt() has only seen the previous connection
  module_ = trainer->module();
  trainer_ = std::move(trainer);
  return {};
}

Status RemoteSteps::connectUntil(Clock::time_point deadline) {
  std::string reason;  // of the last attempt that the deadline did not cut short
  for (Backoff backoff(incarnation_);;) {
    const Status connected = connectOnce(std::min(timeUntil(deadline), kAttemptTimeout));
    if (connected.ok() || !isUnreachable(connected.error())) return connected;
    const bool late = remainingUntil(deadline) == milliseconds(0);
    if (!late || reason.empty()) reason = connected.message();
    if (late) return {ErrorCode::unavailable, fmt::format("no executor answered in time: {}", reason)};
    pause(std::min(backoff.next(), remainingUntil(deadline)));
  }
}

Status RemoteSteps::checkSameModule(const RemoteModule& module) const {
  if (!trainer_) return {};
  if (module.name != module_.name) {
    return {ErrorCode::invalidArgument,
            fmt::format("the executor {} now has module '{}'; this trainer trains '{}'", options_.executor,
                        module.name, module_.name)};
  }
  const bool same = module.inputs == module_.inputs && module.loss == module_.loss;
  if (same) return checkParts(module, parts_.size());
  return {ErrorCode::invalidArgument,
          fmt::format("the executor {} now has another module '{}', which takes {}; expected {}, and "
                      "the same loss",
                      options_.executor, module.name, describeColumns(module.inputs),
                      describeColumns(module_.inputs))};
}

template <class Call>
auto RemoteSteps::callWithRetry(const Call& call) -> decltype(call()) {
  for (;;) {
    auto done = call();
    if (done.ok()) {
      succeeded();
      return done;
    }
    PSD_RETURN_IF_ERROR(recover(done.error()));
  }
}

Result<RemoteJoin> RemoteSteps::join(const Membership& membership) {
  membership_ = membership;
  PSD_ASSIGN_OR_RETURN(const RemoteJoin joined, joinFirst());
  membership_ = {joined.rank, membership.worldSize};
  joined_ = true;
  return joined;
}

Result<RemoteJoin> RemoteSteps::joinOnce() {
  const bool requiresRows = stepped_ && !options_.acceptLostRows;
  PSD_ASSIGN_OR_RETURN(RemoteJoin joined, trainer_->join(membership_, incarnation_,
                                                         requiresRows ? daemons_ : std::vector<uint64_t>()));
  daemons_ = joined.daemons;
  return joined;
}

Result<RemoteJoin> RemoteSteps::joinFirst() {
  const ConnectTimeout timeout(options_.connectTimeout);
  const auto deadline = Clock::now() + timeout.time;
  for (Backoff backoff(incarnation_);;) {
    auto joined = joinOnce();
    if (joined.ok()) {
      succeeded();
      return joined;
    }
    if (interrupted_) return interruptedError();
    const Error& error = joined.error();
    const bool passing = isRetryable(error.code) || error.code == ErrorCode::shuttingDown;
    if (!passing || !timeout.retries) return error;
    if (remainingUntil(deadline) == milliseconds(0)) {
      return Error{error.code, fmt::format("the executor {} did not admit this trainer within {}: {}",
                                           options_.executor, durationText(timeout.time), error.message)};
    }
    reportFaultOnce(ClientEvent::What::broke, error, remainingUntil(deadline));
    pause(std::min(backoff.next(), remainingUntil(deadline)));
    PSD_RETURN_IF_ERROR(connectUntil(deadline));
  }
}

Result<double> RemoteSteps::forward(std::vector<BatchPart> parts) {
  if (parts.empty()) return Error{ErrorCode::invalidArgument, "forward() needs at least one part of a batch"};
  PSD_RETURN_IF_ERROR(checkParts(module_, parts.size()));
  parts_ = std::move(parts);
  return callWithRetry([this] { return forwardOnce(); });
}

Result<double> RemoteSteps::trainPartsOnce() {
  auto loss = trainer_->trainParts(contexts_.front(), parts_);
  if (loss.ok()) return loss;
  for (const uint64_t context : contexts_) (void)trainer_->drop(context);
  return loss;
}

Result<double> RemoteSteps::forwardOnce() {
  contexts_.clear();
  for (size_t i = 0; i < parts_.size(); i++) contexts_.push_back(++context_);
  if (parts_.size() > 1) return trainPartsOnce();
  const BatchPart& whole = parts_.front();
  const uint64_t context = contexts_.front();
  PSD_ASSIGN_OR_RETURN(const ForwardResult result,
                       trainer_->forward(context, whole.inputs, /*training=*/true));
  auto loss = whole.loss(result.outputs);
  if (!loss.ok()) {
    (void)trainer_->drop(context);
    return loss.error();
  }
  gradients_ = std::move(loss->gradients);
  return loss->loss;
}

Result<StepResult> RemoteSteps::stepOnce(Step step, uint32_t samples) {
  const uint64_t first = contexts_.front();
  if (contexts_.size() == 1) return trainer_->backwardAndStep(first, gradients_, step, samples);
  return trainer_->step(first, step, samples, {contexts_.begin() + 1, contexts_.end()});
}

Result<StepResult> RemoteSteps::step(Step step, uint32_t samples) {
  if (contexts_.empty()) return Error{ErrorCode::invalidArgument, "step() comes after forward()"};
  for (bool again = false;; again = true) {
    const auto start = Clock::now();
    auto done = stepOnce(step, samples);
    if (done.ok()) {
      stepped_ = true;
      succeeded();
      return done;
    }
    // The daemon has received slices of this step before the fault, from another gradient.
    if (again && done.error().code == ErrorCode::badSlice) {
      succeeded();
      return StepResult{PushOutcome::late, 0};
    }
    // Time that the step has waited for other trainers before its session ended does not count as fault time.
    if (faultySince_ && endsSession(done.error().code)) *faultySince_ += Clock::now() - start;
    PSD_RETURN_IF_ERROR(recover(done.error()));
    PSD_RETURN_IF_ERROR(forwardAgain());
  }
}

Status RemoteSteps::forwardAgain() {
  for (;;) {
    const auto done = forwardOnce();
    if (done.ok()) break;
    PSD_RETURN_IF_ERROR(recover(done.error()));
  }
  if (sessionLost_) reportRecovered();  // the fault lasts until the step succeeds
  return {};
}

Result<std::vector<NamedTensor>> RemoteSteps::outputs(const std::vector<NamedTensor>& inputs) {
  PSD_ASSIGN_OR_RETURN(ForwardResult result, callWithRetry([&] {
                         return trainer_->forward(++context_, inputs, /*training=*/false);
                       }));
  return std::move(result.outputs);
}

Status RemoteSteps::leave() {
  if (interrupted_) return {};
  return callWithRetry([this] { return trainer_->leave(); });
}

void RemoteSteps::interrupt() {
  interrupted_ = true;  // first: connectUntil() checks it after it has stored a new connection
  const std::lock_guard hold(mutex_);
  if (trainer_) trainer_->interrupt();
}

Status RemoteSteps::recover(const Error& error) {
  if (interrupted_) return interruptedError();
  if (options_.retryTimeout.count() == 0 || !isRetryable(error.code)) return error;
  const auto now = Clock::now();
  if (!faultySince_) faultySince_ = now;
  const auto deadline = *faultySince_ + options_.retryTimeout;
  if (now >= deadline) {
    return {error.code, fmt::format("{}; no attempt has succeeded for {}", error.message,
                                    durationText(options_.retryTimeout))};
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - now);
  if (!endsSession(error.code)) {  // overloaded, or a context has expired: the session is still valid
    if (now >= *faultySince_ + kShortWait) reportFaultOnce(ClientEvent::What::waits, error, left);
    pause(std::min(kPauseSlice, left));
    return interrupted_ ? Status(interruptedError()) : Status();
  }
  sessionLost_ = true;
  reportFaultOnce(ClientEvent::What::broke, error, left);
  return reconnect(error, deadline);
}

void RemoteSteps::succeeded() {
  reportRecovered();
  faultySince_.reset();
}

void RemoteSteps::reportFaultOnce(ClientEvent::What what, const Error& error, milliseconds left) {
  if (reportedAt_) return;
  reportedAt_ = Clock::now();
  report(what, fmt::format("{}; trying again for up to {}", error.message, durationText(left)));
}

void RemoteSteps::reportRecovered() {
  sessionLost_ = false;
  if (!reportedAt_) return;
  const auto taken = std::chrono::duration_cast<milliseconds>(Clock::now() - *reportedAt_);
  reportedAt_.reset();
  report(ClientEvent::What::back, fmt::format("back after {}", durationText(taken)));
}

Status RemoteSteps::reconnect(const Error& cause, Clock::time_point deadline) {
  Backoff backoff(incarnation_ + context_);
  for (Error last = cause;;) {
    Status back = connectUntil(deadline);
    // joinFirst() repeats a first join.
    if (back.ok() && joined_) back = joinOnce().status();
    if (back.ok()) return back;
    if (interrupted_) return interruptedError();
    last = back.error();
    const bool passing =
        isUnreachable(last) || isRetryable(last.code) || last.code == ErrorCode::shuttingDown;
    if (!passing) return last;
    if (remainingUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, fmt::format("{}; no way back within {}: {}", cause.message,
                                                  durationText(options_.retryTimeout), last.message)};
    }
    pause(std::min(backoff.next(), remainingUntil(deadline)));
  }
}

void RemoteSteps::pause(milliseconds time) {
  const auto until = Clock::now() + time;
  while (!interrupted_ && Clock::now() < until) {
    std::this_thread::sleep_for(std::min(kPauseSlice, timeUntil(until)));
  }
}

void RemoteSteps::report(ClientEvent::What what, const std::string& line) const {
  if (options_.onEvent) options_.onEvent({what, line});
}

}  // namespace psd
