#include "server/policy/locked.h"

#include <utility>

#include "server/policy/shard_reads.h"
#include "server/policy/store_promise.h"
#include "server/store/squared_norm.h"

namespace psd {

PolicyPlan Locked::read(ObjectReader& in) {
  const Modifiers modifiers = readModifiers(in);
  return {[modifiers](const PolicyScope& scope) { return std::make_unique<Locked>(scope, modifiers); },
          modifiers.changesGradients()};
}

Locked::Locked(const PolicyScope& scope, const Modifiers& modifiers)
    : modifiers_(modifiers), staging_(scope.staging), shards_(scope.shards().size()) {}

kj::Promise<void> Locked::join(const TrainerRef& trainer) {
  pulled_.admit(trainer.session);
  const std::lock_guard lock(mutex_);
  steps_[trainer.session];
  return kj::READY_NOW;
}

kj::Promise<void> Locked::leave(SessionId session) {
  pulled_.forget(session);
  const std::lock_guard lock(mutex_);
  steps_.erase(session);
  return kj::READY_NOW;
}

kj::Promise<Result<PushAnswer>> Locked::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                             Gradient gradient) {
  const uint64_t count = shard.range().count;
  const bool together = modifiers_.clip.norm.has_value();
  if (gradient.size() == count && !together) return apply(shard, lane, wholeOf(shard, push, gradient), 1);
  if (push.gathered.empty()) {
    auto gathered = GatheredGradient::make(*staging_, count);
    if (!gathered.ok()) return Result<PushAnswer>(gathered.error());
    push.gathered = *std::move(gathered);
  }
  push.gathered.put(offset, gradient);
  push.taken += gradient.size();
  if (push.taken < count) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), 0});
  }
  Whole whole = wholeOf(shard, push, push.gathered.values());
  whole.gathered = std::exchange(push.gathered, {});
  return together ? applyTogether(shard, lane, push, std::move(whole))
                  : apply(shard, lane, std::move(whole), 1);
}

Locked::Whole Locked::wholeOf(const Shard& shard, ShardPush& push, const Gradient& gradient) {
  Whole whole{sourceOf(push), gradient, {}, nullptr};
  if (modifiers_.delay.lambda != 0) {
    whole.pulled = pulled_.find(push.trainer.session, shard.range().id, push.basis);
  }
  return whole;
}

kj::Promise<Result<PushAnswer>> Locked::apply(Shard& shard, Lane& lane, Whole whole, double scale) {
  return shard.lock().acquire().then([this, &shard, &lane, whole = std::move(whole), scale](
                                         ShardLock::Guard guard) mutable -> kj::Promise<Result<PushAnswer>> {
    const uint64_t staleness = whole.source.staleness = stalenessOf(shard, whole.source.basis);
    if (modifiers_.staleness.tooOld(staleness)) {
      return Result<PushAnswer>(PushAnswer{PushOutcome::stale, shard.version(), staleness});
    }
    const uint64_t number = shard.beginUpdateAlone();
    const UpdateScalars update = shard.scalars(number, modifiers_.staleness.factor(staleness));
    GradientChange change{.scale = static_cast<float>(scale)};
    if (modifiers_.clip.value) change.limit = static_cast<float>(*modifiers_.clip.value);
    // Of a fresh gradient there is nothing to compensate, but its square counts.
    if (whole.pulled && (staleness > 0 || modifiers_.delay.adaptive)) {
      change.pulled = whole.pulled->view.values;
      change.lambda = static_cast<float>(modifiers_.delay.lambda);
      change.adaptive = modifiers_.delay.adaptive;
    }
    return storePromise<Status>(shard,
                                [&](ShardStorage::Done done) {
                                  shard.storage().applyChanged(lane, 0, whole.gradient, change, update,
                                                               std::move(done));
                                })
        .then([&shard, whole = std::move(whole), update,
               guard = kj::mv(guard)](Status status) -> Result<PushAnswer> {
          if (!status.ok()) return status.error();
          const Version made = shard.endUpdate({update, whole.gradient, {&whole.source, 1}});
          return PushAnswer{PushOutcome::applied, made, whole.source.staleness, 1, shard.logged()};
        });
  });
}

std::optional<Locked::Parts> Locked::add(SessionId session, Step step, Part part, size_t known) {
  const std::lock_guard lock(mutex_);
  const auto trainer = steps_.find(session);
  if (trainer == steps_.end()) return {};
  auto& steps = trainer->second;
  steps.erase(steps.begin(), steps.lower_bound(step));  // older ones are given up
  Parts& parts = steps[step];
  parts.push_back(std::move(part));
  if (parts.size() + known < shards_) return Parts();
  return std::move(steps.extract(step).mapped());
}

kj::Promise<Result<PushAnswer>> Locked::applyTogether(Shard& shard, Lane& lane, ShardPush& push,
                                                      Whole whole) {
  auto answer = kj::newPromiseAndCrossThreadFulfiller<Result<PushAnswer>>();
  const Result<PushAnswer> received(PushAnswer{PushOutcome::received, shard.version(), 0});
  std::optional<Parts> parts = add(push.trainer.session, push.step,
                                   {shard, lane, std::move(whole), kj::mv(answer.fulfiller)}, push.known);
  if (!parts) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), 0});
  push.later = kj::mv(answer.promise);
  double square = 0;
  for (const Part& part : *parts) square += squaredNorm(part.whole.gradient.values());
  const double scale = modifiers_.clip.scale(square);
  auto applied = kj::heapArrayBuilder<kj::Promise<void>>(parts->size());
  for (Part& part : *parts) {
    // Each by itself: joined promises let go of nothing before the last of them is ready, and who holds one
    // shard's lock until it has the next one's may wait for somebody who does the same.
    applied.add(apply(part.shard, part.lane, std::move(part.whole), scale)
                    .then([answer = kj::mv(part.answer)](Result<PushAnswer> outcome) mutable {
                      answer->fulfill(std::move(outcome));
                    })
                    .eagerlyEvaluate(nullptr));
  }
  return kj::joinPromises(applied.finish()).then([received] { return received; });
}

kj::Promise<Result<PullAnswer>> Locked::pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                             uint64_t count) {
  auto answer = pullSnapshot(shard, lane, pull, offset, count);
  if (modifiers_.delay.lambda == 0 || !pull.trainer) return answer;
  return answer.then([this, &shard, session = pull.trainer->session](Result<PullAnswer> answer) {
    if (answer.ok()) pulled_.note(session, shard.range().id, snapshotOf(*answer));
    return answer;
  });
}

}  // namespace psd
