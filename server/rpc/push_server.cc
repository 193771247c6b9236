#include "server/rpc/push_server.h"

#include <algorithm>
#include <string>

#include "server/rpc/slice_checks.h"

namespace psd {

PushServer::PushServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                       TrainerRef trainer, std::shared_ptr<SessionCounters> counters)
    : connection_(std::move(connection)),
      loop_(connection_->loop()),
      model_(std::move(model)),
      trainer_(trainer),
      counters_(std::move(counters)),
      pushes_(model_->store->shardCount()) {}

Status PushServer::check(const PushSlice& slice) const {
  const LoopEnvironment& environment = loop_.environment();
  if (environment.closed) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  PSD_RETURN_IF_ERROR(
      checkSlice(*model_, loop_.config().limits, slice.shard, slice.offset, slice.gradient.size()));
  return checkGradient(slice.shard, slice.offset, slice.gradient);
}

Result<std::shared_ptr<PushServer::StepPush>> PushServer::stepOf(const PushSlice& slice) {
  auto found = steps_.find(slice.step);
  if (found != steps_.end()) return found->second;
  if (loop_.environment().draining) return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
  // Dropping a policy's half-gathered update is what a trainer asks for when it goes on without it.
  steps_.erase(steps_.begin(), steps_.lower_bound(slice.step));
  return steps_[slice.step] = std::make_shared<StepPush>(loop_);
}

std::shared_ptr<PushServer::OpenPush> PushServer::open(const PushSlice& slice) const {
  auto push = std::make_shared<OpenPush>();
  push->trainer = trainer_;
  push->step = slice.step;
  push->basis = slice.basis;
  push->samples = slice.samples;
  push->policy = model_->policyOf(model_->store->shard(slice.shard));
  return push;
}

Result<PushServer::Admitted> PushServer::admit(const PushSlice& slice) {
  auto& current = pushes_[slice.shard];
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::badSlice, "push of step " + std::to_string(slice.step.value) + ", shard " +
                                          std::to_string(slice.shard) + ", element " +
                                          std::to_string(slice.offset) + ": " + why};
  };
  if (current && current->step > slice.step) {
    return bad("step " + std::to_string(current->step.value) + " has begun already");
  }
  const bool goesOn = current && current->step == slice.step;
  if (goesOn && current->basis != slice.basis) return bad("its slices name different basis versions");
  if (goesOn && current->arrived.overlaps(slice.offset, slice.gradient.size())) {
    return bad("the elements came twice");
  }
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<StepPush> step, stepOf(slice));
  if (!goesOn) current = open(slice);
  current->arrived.add(slice.offset, slice.gradient.size());
  step->arrived += slice.gradient.size();
  const bool last = step->arrived == model_->store->layout().totalElements();
  if (last) {
    step->complete = true;
    loop_.updateArrived();
    steps_.erase(slice.step);
  }
  return Admitted{current, std::move(step), last};
}

void PushServer::count(const PushSlice& slice) {
  DaemonCounters& counters = loop_.environment().counters;
  counters.pushSlices.add();
  const uint64_t bytes = slice.gradient.bytes().size(), valueBytes = slice.gradient.size() * sizeof(float);
  counters.pushBytes.add(bytes);
  counters.pushValueBytes.add(valueBytes);
  counters_->bytesPushed.add(bytes);
  counters_->valueBytesPushed.add(valueBytes);
  counters_->step.set(slice.step.value);
}

void PushServer::count(const PushAnswer& answer) {
  DaemonCounters& counters = loop_.environment().counters;
  counters.updates.add(answer.updates);
  if (answer.outcome == PushOutcome::applied) counters_->staleness.set(answer.staleness);
  if (answer.outcome == PushOutcome::late) counters.latePushes.add();
  if (answer.outcome == PushOutcome::stale) counters.stalePushes.add();
}

kj::Promise<Result<PushAnswer>> PushServer::push(const PushSlice& slice) {
  if (!steps_.contains(slice.step)) {
    KJ_IF_MAYBE (opened, loop_.gate()) {
      inFlight_++;
      return opened->then([this, slice] { return push(slice); }).attach(kj::defer([this] { landed(); }));
    }
  }
  return take(slice);
}

kj::Promise<Result<PushAnswer>> PushServer::take(const PushSlice& slice) {
  auto refuse = [this](const Error& error) {
    countRefusal(loop_.environment().counters, error);
    return Result<PushAnswer>(error);
  };
  if (auto status = check(slice); !status.ok()) return refuse(status.error());
  auto admitted = admit(slice);
  if (!admitted.ok()) return refuse(admitted.error());
  count(slice);
  auto [push, step, last] = *std::move(admitted);
  Shard& shard = model_->store->shard(slice.shard);
  inFlight_++;
  auto answer = push->policy->push(shard, loop_.laneFor(model_, shard), *push, slice.offset, slice.gradient);
  KJ_IF_MAYBE (later, push->later) {
    step->waiting.push_back(kj::mv(*later));
    push->later = nullptr;
  }
  return answer
      .then([step = std::move(step), push = std::move(push),
             last = last](Result<PushAnswer> answer) -> kj::Promise<Result<PushAnswer>> {
        if (!answer.ok() || !last) return answer;
        return settle(step, *answer);
      })
      .then([this, refuse, &shard](Result<PushAnswer> answer) -> kj::Promise<Result<PushAnswer>> {
        if (!answer.ok()) return refuse(answer.error());
        count(*answer);
        return shard.whenDurable(answer->logged).then([answer] { return answer; });
      })
      .attach(kj::defer([this] { landed(); }));
}

kj::Promise<Result<PushAnswer>> PushServer::settle(std::shared_ptr<StepPush> step, PushAnswer last) {
  auto waiting = kj::heapArrayBuilder<kj::Promise<Result<PushAnswer>>>(step->waiting.size());
  for (auto& one : step->waiting) waiting.add(kj::mv(one));
  step->waiting.clear();
  return kj::joinPromises(waiting.finish())
      .then([step = std::move(step), last](kj::Array<Result<PushAnswer>> answers) -> Result<PushAnswer> {
        PushAnswer worst = last;
        for (Result<PushAnswer>& answer : answers) {
          if (!answer.ok()) return answer;
          const uint64_t updates = worst.updates + answer->updates;
          const uint64_t logged = std::max(worst.logged, answer->logged);
          if (worst.outcome <= answer->outcome) worst = *answer;  // the enumeration rises with the trouble
          worst.updates = updates;
          worst.logged = logged;
        }
        return worst;
      });
}

void PushServer::landed() {
  if (--inFlight_ != 0) return;
  KJ_IF_MAYBE (fulfiller, allLanded_) {
    (*fulfiller)->fulfill();
  }
  allLanded_ = nullptr;
}

kj::Promise<void> PushServer::whenLanded() {
  if (inFlight_ == 0) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  allLanded_ = kj::mv(pair.fulfiller);
  return kj::mv(pair.promise);
}

}  // namespace psd
