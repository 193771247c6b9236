#include "trainer/executor/execution_session.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/log/log_line.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/types/finite.h"
#include "common/types/model_layout.h"
#include "trainer/executor/gradient_tensors.h"
#include "trainer/executor/oldest_versions.h"
#include "trainer/executor/remote/session_end.h"
#include "trainer/loop/rows_of_batch.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kExpiredMax = 64;

/// Checks the whole gradient before the push, because a policy may apply slices one by one: when the daemon
/// rejects a later slice, earlier ones are in the model already.
Status checkFinite(std::span<const float> gradient, const ContextRows* rows, const ModelSpec& spec) {
  const ModelLayout layout(spec);
  for (size_t i = 0; i < spec.tensors.size(); i++) {
    const TensorPlace& place = layout.places()[i];
    const auto values = gradient.subspan(place.begin, place.count);
    if (allFinite(values)) continue;
    return {ErrorCode::nonFinite, "the gradient of " + spec.tensors[i].name +
                                      " holds NaN or infinity; was the learning rate too high?"};
  }
  const std::string where = rows == nullptr ? "" : describeNonFiniteRows(spec, rows->batch());
  if (where.empty()) return {};
  return {ErrorCode::nonFinite, "the gradient of " + where + "; was the learning rate too high?"};
}

}  // namespace

/// A training step at the executor, from its forward pass to its step.
struct ExecutionSession::Context {
  enum class State {
    busy,      ///< a call is in progress
    ready,     ///< `pass` waits for its backward pass
    gradient,  ///< `gradient` waits for its step
  };

  const uint64_t id;
  State state = State::busy;
  Clock::time_point lastCall = Clock::now();
  std::shared_ptr<const ByteBudget::Lease> inputLease, outputLease;  // null: not held, or released
  StepTurns::Turn turn;
  std::vector<Version> versions;
  std::shared_ptr<ContextRows> rows;  // null: the model has no tables, or the pass has not started
  std::shared_ptr<ForwardPass> pass;
  std::shared_ptr<float> gradient;
};

ExecutionSession::ExecutionSession(Executor& executor, std::string peer, std::string owner)
    : executor_(executor), peer_(std::move(peer)), owner_(std::move(owner)) {}

ExecutionSession::~ExecutionSession() { close(); }

kj::Promise<Result<JoinInfo>> ExecutionSession::join(const Membership& membership, uint64_t incarnation,
                                                     std::vector<uint64_t> rowsAt) {
  if (daemon_ || endError_) {
    return Result<JoinInfo>(Error{ErrorCode::invalidArgument, "this connection has joined already"});
  }
  if (const Status may = executor_.checkOwner(incarnation, owner_); !may.ok()) {
    logLine(spdlog::level::warn, {.event = "refused", .peer = peer_, .limited = true}, "{}: refused: {}",
            peer_, may.message());
    close();
    return Result<JoinInfo>(may.error());
  }
  if (const Status admitted = executor_.admit(*this); !admitted.ok()) {
    close();  // the connection may join again
    return Result<JoinInfo>(admitted.error());
  }
  admitted_ = true;
  auto daemon = executor_.makeDaemonSession(incarnation, std::move(rowsAt));
  if (!daemon.ok()) {
    close();
    return Result<JoinInfo>(daemon.error());
  }
  daemon_ = *std::move(daemon);
  rank_ = membership.rank;
  incarnation_ = incarnation;
  keptSession_ = executor_.takeKeptSession(incarnation);
  return daemon_->join(membership).then([this, self = shared_from_this()](Result<JoinInfo> joined) {
    if (endError_) return Result<JoinInfo>(*endError_);  // the peer has disconnected meanwhile
    if (joined.ok()) {
      rank_ = joined->rank;
      joined_ = true;
      executor_.recordOwner(incarnation_, owner_);
      keptSession_ = nullptr;
      logLine(spdlog::level::info, fields("joined"),
              "{}: rank {} of {} joined: policy {}, parameters by {}, gradients by {}", peer_, rank_.value,
              joined->worldSize, joined->policy, joined->pullTransport, joined->pushTransport);
    } else {
      LogFields refused = fields("refused");
      refused.limited = true;
      logLine(spdlog::level::warn, refused, "{}: rank {} was rejected: {}", peer_, rank_.value,
              joined.message());
      close();
    }
    return joined;
  });
}

void ExecutionSession::close() {
  if (std::exchange(admitted_, false)) executor_.forget(*this);
  if (!endError_) endError_ = Error{ErrorCode::sessionEnded, "the session is over"};
  contexts_.clear();
  if (keptSession_) executor_.keep(incarnation_, std::move(keptSession_));
  daemon_ = nullptr;
}

Status ExecutionSession::usable() const {
  if (endError_) return *endError_;
  return daemon_ ? Status() : Status(ErrorCode::notReady, "a call before join()");
}

Result<ExecutionSession::ContextPtr> ExecutionSession::begin(ForwardCall& call) {
  PSD_RETURN_IF_ERROR(usable());
  PSD_RETURN_IF_ERROR(checkInputs(call.inputs, executor_.model().inputs()));
  if (call.training && contexts_.contains(call.context)) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("context {} is in use; step or drop ends it", call.context)};
  }
  const uint32_t most = executor_.config().contexts;
  if (call.training && contexts_.size() >= most) {
    return Error{ErrorCode::overloaded,
                 fmt::format("this trainer has {} contexts; `contexts` allows {}", contexts_.size(), most)};
  }
  PSD_ASSIGN_OR_RETURN(ByteBudget::Lease lease, executor_.arrays().lease(totalBytes(call.inputs), "inputs"));
  auto context = std::make_shared<Context>(Context{call.context});
  context->inputLease = std::make_shared<ByteBudget::Lease>(std::move(lease));
  if (call.training) contexts_.emplace(call.context, context);
  return context;
}

kj::Promise<Result<ForwardDone>> ExecutionSession::forward(ForwardCall call) {
  auto slot = executor_.admitCall();
  if (!slot.ok()) return Result<ForwardDone>(slot.error());
  auto begun = begin(call);
  if (!begun.ok()) return Result<ForwardDone>(begun.error());
  const ContextPtr context = *begun;
  const bool training = call.training;
  const auto inputs = std::make_shared<std::vector<NamedTensor>>(std::move(call.inputs));
  auto turn =
      training ? executor_.turns().take(call.priority) : kj::Promise<StepTurns::Turn>(StepTurns::Turn());
  return turn
      .then([this, context, inputs, training](StepTurns::Turn mine) -> kj::Promise<Result<PulledWeights>> {
        context->turn = std::move(mine);
        if (endError_) return Result<PulledWeights>(*endError_);
        return daemon_->weights(inputs, training);
      })
      .then(
          [this, context, inputs, slot = *slot, call = kj::mv(call)](Result<PulledWeights> weights) mutable {
            return compute(context, kj::mv(slot), call, inputs, kj::mv(weights));
          })
      .then([this, context, training](Result<std::shared_ptr<ForwardPass>> pass) {
        return finish(context, training, kj::mv(pass));
      })
      .attach(shared_from_this(), *kj::mv(slot));
}

kj::Promise<Result<std::shared_ptr<ForwardPass>>> ExecutionSession::compute(const ContextPtr& context,
                                                                            Executor::CallSlot slot,
                                                                            const ForwardCall& call,
                                                                            const Inputs& inputs,
                                                                            Result<PulledWeights> weights) {
  using Pass = std::shared_ptr<ForwardPass>;
  if (!weights.ok()) return Result<Pass>(weights.error());
  context->versions = std::move(weights->versions);
  context->rows = std::move(weights->rows);
  // The task holds its own leases and call slot, since it may outlive the trainer.
  return executor_.workers().run<Pass>(
      {call.priority, CallKind::forward, rank_.value, call.context},
      [&model = executor_.model(), values = weights->values, rows = context->rows, inputs,
       lease = context->inputLease, slot = std::move(slot),
       training = call.training]() mutable -> Result<Pass> {
        const Executor::CallSlot held = std::move(slot);  // released once the task returns
        PSD_ASSIGN_OR_RETURN(auto pass, model.forward(values, std::move(*inputs), training,
                                                      rows ? rows->forPass() : PassRows()));
        return Pass(std::move(pass));
      });
}

Result<ForwardDone> ExecutionSession::finish(const ContextPtr& context, bool training,
                                             Result<std::shared_ptr<ForwardPass>> pass) {
  if (!pass.ok()) return failed(context, pass.error());
  if (endError_) return failed(context, *endError_);
  const auto found = contexts_.find(context->id);
  if (training && (found == contexts_.end() || found->second != context)) {
    return Error{ErrorCode::invalidArgument, fmt::format("context {} was dropped meanwhile", context->id)};
  }
  const uint64_t bytes = totalBytes((*pass)->outputs());
  if (bytes > executor_.config().messageBytes) {
    return failed(context, {ErrorCode::invalidArgument,
                            fmt::format("{} of outputs; message_bytes allows {}: send fewer samples",
                                        bytesText(bytes), bytesText(executor_.config().messageBytes))});
  }
  auto lease = executor_.arrays().lease(bytes, "outputs");
  if (!lease.ok()) return failed(context, lease.error());
  forwards_++;
  if (training) {
    context->outputLease = std::make_shared<ByteBudget::Lease>(*std::move(lease));
    context->pass = *pass;
    context->state = Context::State::ready;
    context->lastCall = Clock::now();
  }
  return ForwardDone{*std::move(pass), context->versions};
}

Result<ExecutionSession::ContextPtr> ExecutionSession::find(uint64_t id) const {
  PSD_RETURN_IF_ERROR(usable());
  const auto found = contexts_.find(id);
  if (found == contexts_.end()) {
    if (std::ranges::find(expiredContexts_, id) != expiredContexts_.end()) {
      return Error{ErrorCode::deadlineExceeded,
                   fmt::format("context {} was dropped: no call used it for context_ms ({})", id,
                               durationText(executor_.config().context))};
    }
    return Error{ErrorCode::invalidArgument,
                 fmt::format("there is no context {}: no forward pass created it, or it has ended", id)};
  }
  if (found->second->state == Context::State::busy) {
    return Error{ErrorCode::invalidArgument, fmt::format("another call of context {} is in progress", id)};
  }
  return found->second;
}

kj::Promise<Result<bool>> ExecutionSession::backward(uint64_t id, std::vector<NamedTensor> outputGradients,
                                                     int8_t priority) {
  auto found = find(id);
  if (!found.ok()) return Result<bool>(found.error());
  const ContextPtr context = *found;
  if (context->state != Context::State::ready) {
    return Result<bool>(
        Error{ErrorCode::invalidArgument,
              fmt::format("context {} has had its backward pass; expected step or drop", id)});
  }
  auto slot = executor_.admitCall();
  if (!slot.ok()) return Result<bool>(failed(context, slot.error()));
  auto lease = executor_.arrays().lease(totalBytes(outputGradients), "output gradients");
  if (!lease.ok()) return Result<bool>(failed(context, lease.error()));
  auto array = executor_.arrays().take();
  if (!array.ok()) return Result<bool>(failed(context, array.error()));
  context->state = Context::State::busy;
  struct Given {
    std::vector<NamedTensor> gradients;
    ByteBudget::Lease lease;
  };
  const auto given = std::make_shared<Given>(Given{std::move(outputGradients), *std::move(lease)});
  const uint64_t elements = executor_.arrays().elements();
  return executor_.workers()
      .run<bool>({priority, CallKind::backward, rank_.value, id},
                 [&spec = executor_.model().spec(), pass = context->pass, rows = context->rows,
                  array = *array, given, elements, inputLease = context->inputLease,
                  outputLease = context->outputLease, slot = *slot]() mutable -> Result<bool> {
                   const Executor::CallSlot held = std::move(slot);
                   const std::span<float> gradient(array.get(), elements);
                   PSD_RETURN_IF_ERROR(pass->backward(given->gradients, gradient));
                   PSD_RETURN_IF_ERROR(checkFinite(gradient, rows.get(), spec));
                   return true;
                 })
      .then([this, context, array = *array](Result<bool> done) -> Result<bool> {
        if (!done.ok()) return failed(context, done.error());
        context->pass = nullptr;
        context->outputLease = nullptr;
        context->inputLease = nullptr;
        context->gradient = array;
        context->state = Context::State::gradient;
        context->lastCall = Clock::now();
        return true;
      })
      .attach(shared_from_this(), *kj::mv(slot));
}

Result<std::vector<ExecutionSession::ContextPtr>> ExecutionSession::findAll(
    uint64_t id, const std::vector<uint64_t>& also) const {
  if (!also.empty() && !executor_.model().spec().tables.empty()) {
    return Error{ErrorCode::invalidArgument,
                 "a step of several contexts is not for a module with embedding tables"};
  }
  std::vector<uint64_t> ids{id};
  ids.insert(ids.end(), also.begin(), also.end());
  std::vector<ContextPtr> contexts;
  for (const uint64_t each : ids) {
    PSD_ASSIGN_OR_RETURN(ContextPtr context, find(each));
    if (context->state != Context::State::gradient) {
      return Error{ErrorCode::invalidArgument,
                   fmt::format("context {} has no gradient yet; expected backward before step", each)};
    }
    if (std::ranges::find(contexts, context) != contexts.end()) {
      return Error{ErrorCode::invalidArgument, fmt::format("context {} is given twice", each)};
    }
    contexts.push_back(std::move(context));
  }
  return contexts;
}

kj::Promise<Result<PushInfo>> ExecutionSession::step(uint64_t id, Step step, uint32_t samples,
                                                     const std::vector<uint64_t>& also) {
  auto found = findAll(id, also);
  if (!found.ok()) return Result<PushInfo>(found.error());
  const auto wrong = [](std::string message) {
    return Result<PushInfo>(Error{ErrorCode::invalidArgument, std::move(message)});
  };
  if (step <= newest_) {
    return wrong(fmt::format("step {} of context {}: step {} has been pushed; numbers rise, from 1",
                             step.value, id, newest_.value));
  }
  if (samples == 0) return wrong(fmt::format("step {}: samples: expected at least 1", step.value));
  const auto failAll = [this, &found](const Error& error) {
    for (const ContextPtr& context : *found) static_cast<void>(failed(context, error));
    return Result<PushInfo>(error);
  };
  std::vector<const std::vector<Version>*> seen;
  for (const ContextPtr& context : *found) seen.push_back(&context->versions);
  auto basis = oldestOf(seen);
  if (!basis.ok()) return failAll(basis.error());
  auto slot = executor_.admitCall();
  if (!slot.ok()) return failAll(slot.error());
  const Step before = std::exchange(newest_, step);
  std::vector<std::shared_ptr<float>> gradients;
  for (const ContextPtr& context : *found) {
    context->state = Context::State::busy;
    gradients.push_back(context->gradient);
  }
  return daemon_->push(step, std::move(gradients), found->front()->rows, samples, *std::move(basis))
      .then([this, contexts = *found, step, before](Result<PushInfo> pushed) {
        if (!pushed.ok()) {
          // The trainer may repeat this step: the daemon does not apply the same step number twice.
          if (newest_ == step) newest_ = before;
          for (const ContextPtr& context : contexts) end(context);
          return Result<PushInfo>(failed(contexts.front(), pushed.error()));
        }
        steps_++;
        staleness_ = pushed->staleness;
        for (const ContextPtr& context : contexts) end(context);
        return pushed;
      })
      .attach(shared_from_this(), *kj::mv(slot));
}

Result<std::vector<NamedTensor>> ExecutionSession::gradients(uint64_t id,
                                                             const std::vector<std::string>& names) const {
  PSD_ASSIGN_OR_RETURN(const ContextPtr context, find(id));
  if (context->state != Context::State::gradient) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("context {} has no gradient yet; expected backward", id)};
  }
  context->lastCall = Clock::now();
  return gradientTensors(executor_.model().spec(),
                         {context->gradient.get(), context->rows ? &context->rows->batch() : nullptr}, names,
                         executor_.config().messageBytes);
}

kj::Promise<Result<bool>> ExecutionSession::leave() {
  if (const Status may = usable(); !may.ok()) return Result<bool>(may.error());
  contexts_.clear();
  return daemon_->leave().then([this, self = shared_from_this()](Result<bool> left) {
    logLine(spdlog::level::info, fields("left"), "{}: rank {} has left after {} step(s)", peer_, rank_.value,
            steps_);
    close();
    return left;
  });
}

LogFields ExecutionSession::fields(std::string event) const {
  LogFields fields{.event = std::move(event), .rank = rank_.value, .peer = peer_};
  if (steps_ > 0) fields.step = steps_;
  return fields;
}

void ExecutionSession::end(const ContextPtr& context) {
  const auto found = contexts_.find(context->id);
  if (found != contexts_.end() && found->second == context) contexts_.erase(found);
}

Error ExecutionSession::failed(const ContextPtr& context, const Error& error) {
  end(context);
  if (!endError_ && endsSession(error.code)) {
    logLine(spdlog::level::warn, fields("lost"), "{}: rank {}: {}", peer_, rank_.value, error.message);
    endError_ = error;
    if (isRetryable(error.code)) executor_.keep(incarnation_, daemon_);  // the trainer will reconnect
    close();
  }
  // A call that fails because the session has ended returns the error that ended it.
  return endError_ && endsSession(error.code) ? *endError_ : error;
}

void ExecutionSession::dropIdle(Clock::time_point before) {
  std::erase_if(contexts_, [&](const auto& each) {
    const auto& [id, context] = each;
    if (context->state == Context::State::busy || context->lastCall >= before) return false;
    expiredContexts_.push_back(id);
    if (expiredContexts_.size() > kExpiredMax) expiredContexts_.pop_front();
    logLine(spdlog::level::warn, fields("context_dropped"),
            "{}: rank {}: dropped context {}: no call used it for {}", peer_, rank_.value, id,
            durationText(executor_.config().context));
    return true;
  });
}

RemoteTrainerStatus ExecutionSession::status() const {
  uint64_t rows = 0;
  for (const auto& [id, context] : contexts_) rows += context->rows ? context->rows->batch().rowCount() : 0;
  return {joined_, rank_.value, peer_, contexts_.size(), forwards_, steps_, staleness_, rows};
}

}  // namespace psd
