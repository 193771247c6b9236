#include "server/policy/async_diloco.h"

#include <utility>

#include "server/policy/inner_config.h"
#include "server/policy/local_plan.h"

namespace psd {
namespace {

constexpr uint64_t kLearnersMax = 1'000'000;

}  // namespace

PolicyPlan AsyncDiloco::read(ConfigReader in) {
  LocalPlan local = readLocalPlan(in);
  local.inner = readInnerOptimizer(in.object(kInnerKey));
  local.updatesPerRound = 0;
  in.integer({"learners",
              "Pushes that count as a round of the run, for `inner.schedule`. 0: as many as "
              "`optimizer.delay`, or 1 for an optimizer without that key."},
             local.updatesPerRound, 0, kLearnersMax);
  in.boolean({"dynamic_period", "Slower trainers push after fewer steps, in proportion to their speed."},
             local.endsEarly);
  std::optional<uint64_t> dynamic;
  if (local.endsEarly) dynamic = local.period;
  return {
      .make = [dynamic](const PolicyScope& scope) { return std::make_unique<AsyncDiloco>(scope, dynamic); },
      .local = std::move(local)};
}

AsyncDiloco::AsyncDiloco(const PolicyScope& scope, std::optional<uint64_t> dynamicPeriod)
    : updates_(scope, Modifiers()),
      dynamic_(dynamicPeriod.has_value()),
      paces_(dynamicPeriod.value_or(1), scope.started) {}

kj::Promise<void> AsyncDiloco::leave(SessionId session) {
  {
    const std::lock_guard lock(mutex_);
    paces_.leave(session);
    waits_.answer(session, Error{ErrorCode::notReady, "the trainer has left"});
  }
  return updates_.leave(session);
}

kj::Promise<Result<PushAnswer>> AsyncDiloco::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                  Gradient gradient) {
  if (dynamic_ && push.taken == 0) {
    const std::lock_guard lock(mutex_);
    paces_.pushes(push.trainer.session, push.localSteps, std::chrono::steady_clock::now());
  }
  return updates_.push(shard, lane, push, offset, gradient);
}

kj::Promise<Result<RoundDue>> AsyncDiloco::roundDue(SessionId session, Version) {
  const std::lock_guard lock(mutex_);
  paces_.begins(session, std::chrono::steady_clock::now());
  return waits_.add(session);
}

kj::Promise<void> AsyncDiloco::tick(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  waits_.answerDue([&](SessionId session) {
    const auto due = paces_.dueAt(session);
    return due && now >= *due ? std::optional(RoundDue::stepsDone) : std::nullopt;
  });
  return kj::READY_NOW;
}

void AsyncDiloco::endParked(const Error& reason) {
  const std::lock_guard lock(mutex_);
  waits_.end(reason);
}

void AsyncDiloco::retire() {
  endParked({ErrorCode::notReady, "another policy has taken over"});
  updates_.retire();
}

void AsyncDiloco::endWaits(const Error& reason) {
  endParked(reason);
  updates_.endWaits(reason);
}

}  // namespace psd
