#include "server/policy/async_diloco.h"

#include <utility>

#include "server/policy/inner_config.h"
#include "server/policy/local_plan.h"

namespace psd {
namespace {

constexpr uint64_t kLearnersMax = 1'000'000;

}  // namespace

PolicyPlan AsyncDiloco::read(ObjectReader& in) {
  LocalPlan local = readLocalPlan(in);
  local.inner = readInnerOptimizer(in.object("inner"));
  local.arrivals = static_cast<uint32_t>(in.integer("learners", 0, 0, kLearnersMax));
  local.endsEarly = in.boolean("dynamic_period", false);
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
    if (const auto wait = waits_.find(session); wait != waits_.end()) {
      wait->second->fulfill(Result<RoundDue>(ErrorCode::notReady, "the trainer has left"));
      waits_.erase(wait);
    }
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

kj::Promise<Result<RoundDue>> AsyncDiloco::roundDue(SessionId session, Version version) {
  if (!dynamic_) return UpdatePolicy::roundDue(session, version);
  auto answer = kj::newPromiseAndCrossThreadFulfiller<Result<RoundDue>>();
  const std::lock_guard lock(mutex_);
  if (ending_) return Result<RoundDue>(*ending_);
  paces_.begins(session, std::chrono::steady_clock::now());
  Fulfiller& wait = waits_[session];
  if (wait.get() != nullptr) {
    wait->fulfill(Result<RoundDue>(ErrorCode::notReady, "the trainer has asked again"));
  }
  wait = kj::mv(answer.fulfiller);
  return kj::mv(answer.promise);
}

kj::Promise<void> AsyncDiloco::tick(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const auto due = paces_.dueAt(wait->first);
    if (!due || now < *due) {
      ++wait;
      continue;
    }
    wait->second->fulfill(Result<RoundDue>(RoundDue::closing));
    wait = waits_.erase(wait);
  }
  return kj::READY_NOW;
}

void AsyncDiloco::answerWaits(const Error& reason) {
  const std::lock_guard lock(mutex_);
  ending_ = reason;
  for (auto& [session, wait] : waits_) wait->fulfill(Result<RoundDue>(reason));
  waits_.clear();
}

void AsyncDiloco::retire() {
  answerWaits({ErrorCode::notReady, "another policy has taken over"});
  updates_.retire();
}

void AsyncDiloco::endWaits(const Error& reason) {
  answerWaits(reason);
  updates_.endWaits(reason);
}

}  // namespace psd
