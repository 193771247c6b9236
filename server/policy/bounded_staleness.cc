#include "server/policy/bounded_staleness.h"

#include <string>
#include <utility>

namespace psd {
namespace {

constexpr uint64_t kBoundMax = 1'000'000;

}  // namespace

PolicyPlan BoundedStaleness::read(ObjectReader& in) {
  const uint64_t bound = in.integer("bound", 4, 0, kBoundMax);
  const Modifiers modifiers = readModifiers(in);
  return {[bound, modifiers](const PolicyScope& scope) {
            return std::make_unique<BoundedStaleness>(scope, bound, modifiers);
          },
          modifiers.changesGradients()};
}

BoundedStaleness::BoundedStaleness(const PolicyScope& scope, uint64_t bound, const Modifiers& modifiers)
    : updates_(scope, modifiers), shards_(scope.shards().size()), clocks_(bound) {}

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
  const auto counted = [this, session = push.trainer.session, step = push.step](Result<PushAnswer> answer) {
    if (answer.ok() && answer->outcome != PushOutcome::received) count(session, step);
    return answer;
  };
  auto answer = updates_.push(shard, lane, push, offset, gradient);
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
    if (++steps[step] < shards_) {
      if (steps.size() > kStepsMax) steps.erase(steps.begin());
      return;
    }
    steps.erase(steps.begin(), steps.upper_bound(step));  // older ones were given up
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
  return mayRead(pull.trainer->session).then([read](Status status) -> kj::Promise<Result<PullAnswer>> {
    if (!status.ok()) return Result<PullAnswer>(status.error());
    return read();
  });
}

kj::Promise<Status> BoundedStaleness::mayRead(SessionId session) {
  const std::lock_guard lock(mutex_);
  if (retired_ || clocks_.read(session, std::chrono::steady_clock::now())) return Status();
  if (ending_) return Status(*ending_);
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
