#include "server/policy/bounded_staleness.h"

#include <string>
#include <utility>

namespace psd {
namespace {

constexpr uint64_t kBoundMax = 1'000'000;

}  // namespace

PolicyPlan BoundedStaleness::read(ConfigReader in) {
  uint64_t bound = 4;
  in.integer({"bound", "Steps by which a trainer may be ahead of the slowest one when it pulls."}, bound, 0,
             kBoundMax);
  const Modifiers modifiers = readModifiers(in);
  return {.make =
              [bound, modifiers](const PolicyScope& scope) {
                return std::make_unique<BoundedStaleness>(scope, bound, modifiers);
              },
          .changesGradients = modifiers.changesGradients(),
          .changesRates = modifiers.changesRates(),
          .tablesUnsupported = modifiers.tablesUnsupported(),
          .needsWholeGradient = modifiers.needsWholeGradient()};
}

BoundedStaleness::BoundedStaleness(const PolicyScope& scope, uint64_t bound, const Modifiers& modifiers)
    : updates_(scope, modifiers), blocks_(scope.blockCount()), clocks_(bound) {}

BoundedStaleness::Parked BoundedStaleness::take(const StepClocks::Released& released) {
  Parked waits;
  for (SessionId session : released) {
    for (auto& wait : parked_[session]) waits.push_back(kj::mv(wait));
    parked_.erase(session);
  }
  return waits;
}

BoundedStaleness::Parked BoundedStaleness::takeAll() {
  Parked waits;
  for (auto& [session, parked] : parked_) {
    for (auto& wait : parked) waits.push_back(kj::mv(wait));
  }
  parked_.clear();
  return waits;
}

void BoundedStaleness::end(Parked waits, const Status& how) {
  for (auto& wait : waits) wait->fulfill(Status(how));
}

kj::Promise<void> BoundedStaleness::join(const TrainerRef& trainer) {
  const std::lock_guard lock(mutex_);
  clocks_.join(trainer.session);
  return updates_.join(trainer);
}

kj::Promise<void> BoundedStaleness::leave(SessionId session) {
  Parked own, others;
  {
    const std::lock_guard lock(mutex_);
    others = take(clocks_.leave(session));
    own = take({session});
    arriving_.erase(session);
  }
  end(std::move(others), {});
  end(std::move(own), {ErrorCode::notReady, "this trainer has left"});
  return updates_.leave(session);
}

kj::Promise<Result<PushAnswer>> BoundedStaleness::push(Shard& shard, Lane& lane, ShardPush& push,
                                                       uint64_t offset, Gradient gradient) {
  return counted(push, updates_.push(shard, lane, push, offset, gradient));
}

kj::Promise<Result<PushAnswer>> BoundedStaleness::pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                                           RowGradient slice) {
  return counted(push, updates_.pushRows(shard, push, first, slice));
}

kj::Promise<Result<PushAnswer>> BoundedStaleness::counted(ShardPush& push,
                                                          kj::Promise<Result<PushAnswer>> answer) {
  const auto counted = [this, session = push.trainer.session, step = push.step](Result<PushAnswer> answer) {
    if (answer.ok() && answer->outcome != PushOutcome::received) count(session, step);
    return answer;
  };
  KJ_IF_MAYBE (later, push.pendingAnswer) {
    push.pendingAnswer = later->then(kj::cp(counted));
  }
  return answer.then(kj::cp(counted));
}

void BoundedStaleness::count(SessionId session, Step step) {
  Parked released;
  {
    const std::lock_guard lock(mutex_);
    if (!clocks_.clock(session)) return;  // the trainer has left
    auto& steps = arriving_[session];
    if (++steps[step] < blocks_) {
      if (steps.size() > kStepsMax) steps.erase(steps.begin());
      return;
    }
    steps.erase(steps.begin(), steps.upper_bound(step));  // older steps are abandoned
    released = take(clocks_.advance(session));
  }
  end(std::move(released), {});
}

kj::Promise<Result<PullAnswer>> BoundedStaleness::pull(Shard& shard, Lane& lane, ShardPull& pull,
                                                       uint64_t offset, uint64_t count) {
  const auto read = [this, &shard, &lane, &pull, offset, count] {
    return updates_.pull(shard, lane, pull, offset, count);
  };
  if (!pull.trainer) return read();
  return waitUntilWithinBound(pull.trainer->session)
      .then([read](Status status) -> kj::Promise<Result<PullAnswer>> {
        if (!status.ok()) return Result<PullAnswer>(status.error());
        return read();
      });
}

kj::Maybe<kj::Promise<Status>> BoundedStaleness::waitToPullRows(const std::optional<TrainerRef>& trainer) {
  return trainer ? waitToRead(trainer->session) : nullptr;
}

kj::Promise<Result<RowsAnswer>> BoundedStaleness::pullRows(RowShard& shard,
                                                           const std::optional<TrainerRef>& trainer,
                                                           RowIds rows, std::span<float> out) {
  if (!trainer) return updates_.pullRows(shard, trainer, rows, out);
  return waitUntilWithinBound(trainer->session)
      .then([this, &shard, trainer, rows, out](Status status) -> kj::Promise<Result<RowsAnswer>> {
        if (!status.ok()) return Result<RowsAnswer>(status.error());
        return updates_.pullRows(shard, trainer, rows, out);
      });
}

kj::Promise<Status> BoundedStaleness::waitUntilWithinBound(SessionId session) {
  auto waits = waitToRead(session);
  KJ_IF_MAYBE (wait, waits) return kj::mv(*wait);
  return Status();
}

kj::Maybe<kj::Promise<Status>> BoundedStaleness::waitToRead(SessionId session) {
  const std::lock_guard lock(mutex_);
  if (retired_ || clocks_.read(session, std::chrono::steady_clock::now())) return nullptr;
  if (ending_) return kj::Promise<Status>(Status(*ending_));
  auto wait = kj::newPromiseAndCrossThreadFulfiller<Status>();
  parked_[session].push_back(kj::mv(wait.fulfiller));
  return kj::mv(wait.promise);
}

std::vector<Waiting> BoundedStaleness::waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<Waiting> all;
  for (const StepClocks::Wait& wait : clocks_.waits()) {
    Waiting waiting{"bound " + std::to_string(clocks_.bound()) + ", " + std::to_string(wait.ahead) + " ahead",
                    {wait.session},
                    {},
                    0};
    for (SessionId slow : wait.slowest) waiting.awaited.push_back({slow, wait.since});
    all.push_back(std::move(waiting));
  }
  return all;
}

void BoundedStaleness::endWaits(const Error& reason) {
  Parked waits;
  {
    const std::lock_guard lock(mutex_);
    ending_ = reason;
    waits = takeAll();
  }
  end(std::move(waits), reason);
}

void BoundedStaleness::retire() {
  Parked waits;
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    waits = takeAll();
  }
  end(std::move(waits), {});
}

}  // namespace psd
