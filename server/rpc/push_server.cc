#include "server/rpc/push_server.h"

#include <string>

#include "server/rpc/slice_checks.h"

namespace psd {

PushServer::PushServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                       std::shared_ptr<SessionCounters> counters)
    : connection_(std::move(connection)),
      loop_(connection_->loop()),
      model_(std::move(model)),
      counters_(std::move(counters)),
      pushes_(model_->store->shardCount()) {}

Status PushServer::check(const PushSlice& slice) const {
  const LoopEnvironment& environment = loop_.environment();
  if (environment.closed) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  PSD_RETURN_IF_ERROR(
      checkSlice(*model_, environment.config.limits, slice.shard, slice.offset, slice.gradient.size()));
  return checkFinite(slice.shard, slice.offset, slice.gradient);
}

Result<std::shared_ptr<PushServer::OpenPush>> PushServer::admit(const PushSlice& slice) {
  auto& current = pushes_[slice.shard];
  if (!current || current->step < slice.step) {
    // Dropping a policy's half-gathered update is what a trainer asks for when it goes on without it.
    if (loop_.environment().draining) {
      return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
    }
    current = std::make_shared<OpenPush>(loop_);
    current->step = slice.step;
    current->basis = slice.basis;
    current->samples = slice.samples;
  }
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::badSlice, "push of step " + std::to_string(slice.step.value) + ", shard " +
                                          std::to_string(slice.shard) + ", element " +
                                          std::to_string(slice.offset) + ": " + why};
  };
  if (current->step != slice.step) {
    return bad("step " + std::to_string(current->step.value) + " has begun already");
  }
  if (current->basis != slice.basis) return bad("its slices name different basis versions");
  if (!current->arrived.add(slice.offset, slice.gradient.size())) return bad("the elements came twice");
  return current;
}

void PushServer::count(const PushSlice& slice) {
  DaemonCounters& counters = loop_.environment().counters;
  counters.pushSlices.add();
  counters.pushBytes.add(slice.gradient.size_bytes());
  counters_->bytesPushed.add(slice.gradient.size_bytes());
  counters_->step.set(slice.step.value);
}

kj::Promise<Result<PushAnswer>> PushServer::push(const PushSlice& slice) {
  auto refuse = [this](const Error& error) {
    countRefusal(loop_.environment().counters, error);
    return Result<PushAnswer>(error);
  };
  if (auto status = check(slice); !status.ok()) return refuse(status.error());
  auto admitted = admit(slice);
  if (!admitted.ok()) return refuse(admitted.error());
  count(slice);
  std::shared_ptr<OpenPush> push = *admitted;
  Shard& shard = model_->store->shard(slice.shard);
  inFlight_++;
  return model_->policy->push(shard, loop_.laneFor(model_, shard), *push, slice.offset, slice.gradient)
      .then([this, refuse, push](Result<PushAnswer> answer) {
        if (!answer.ok()) return refuse(answer.error());
        if (answer->applied) {
          push->finish();
          loop_.environment().counters.updates.add();
          counters_->staleness.set(answer->staleness);
        }
        return answer;
      })
      .attach(kj::defer([this] { landed(); }));
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
