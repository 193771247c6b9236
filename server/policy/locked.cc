#include "server/policy/locked.h"

#include <utility>

#include "server/policy/store_promise.h"
#include "server/store/squared_norm.h"

namespace psd {
namespace {

/// Whether a gradient of a whole shard may be applied from where it lies: not where it may change between
/// that and the log's copy of it, nor where only some elements are to get it.
bool takenInPlace(const Shard& shard, const Gradient& gradient) {
  return !shard.divided() && !(shard.logs() && gradient.inSharedMemory());
}

/// Applies to some elements of the shard what the gradient, all of it and in host memory, has for them.
kj::Promise<Status> applyTo(Shard& shard, Lane& lane, const Gradient& gradient, const GradientChange& change,
                            const UpdateScalars& update, std::vector<PushedRange> ranges, size_t next = 0) {
  const auto [begin, count, pushes] = ranges[next];
  const bool all = count == gradient.size();
  const Gradient part = all ? gradient : Gradient(gradient.values().subspan(begin, count));
  GradientChange changed = change;
  if (!change.pulled.empty()) changed.pulled = change.pulled.subspan(begin, count);
  auto applied = storePromise<Status>(shard, [&, begin = begin](ShardStorage::Done done) {
    shard.storage().applyChanged(lane, begin, part, changed, update, std::move(done));
  });
  if (next + 1 == ranges.size()) return applied;
  return applied.then([&shard, &lane, gradient, change, update, ranges = std::move(ranges),
                       next](Status status) mutable -> kj::Promise<Status> {
    if (!status.ok()) return status;
    return applyTo(shard, lane, gradient, change, update, std::move(ranges), next + 1);
  });
}

}  // namespace

PolicyPlan Locked::read(ObjectReader& in) {
  const Modifiers modifiers = readModifiers(in);
  return {[modifiers](const PolicyScope& scope) { return std::make_unique<Locked>(scope, modifiers); },
          modifiers.changesGradients()};
}

Locked::Locked(const PolicyScope& scope, const Modifiers& modifiers)
    : modifiers_(modifiers),
      staging_(scope.staging),
      shards_(scope.shards().size()),
      pulled_(scope.snapshots),
      snapshots_(scope.snapshots) {}

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
  const bool together = modifiers_.clip.norm.has_value();
  if (gradient.size() == shard.range().count && !together && takenInPlace(shard, gradient)) {
    return apply(shard, lane, wholeOf(shard, push, gradient), 1);
  }
  if (!push.gathered.empty() || !shard.logs()) return gather(shard, lane, push, offset, gradient);
  // While gradients wait for a slow disk no further gradient is gathered to wait behind them.
  return shard.roomToLog(0).then([this, &shard, &lane, &push, offset, gradient](ByteBudget::Lease) {
    return gather(shard, lane, push, offset, gradient);
  });
}

kj::Promise<Result<PushAnswer>> Locked::gather(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                               const Gradient& gradient) {
  const uint64_t count = shard.range().count;
  if (push.gathered.empty()) {
    auto gathered = GatheredGradient::make(*staging_, count);
    if (!gathered.ok()) return Result<PushAnswer>(gathered.error());
    push.gathered = *std::move(gathered);
  }
  if (Status put = push.gathered.put(shard.range().id, offset, gradient); !put.ok()) {
    return Result<PushAnswer>(put.error());
  }
  push.taken += gradient.size();
  if (push.taken < count) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), 0});
  }
  Whole whole = wholeOf(shard, push, push.gathered.values());
  whole.gathered = std::exchange(push.gathered, {});
  return modifiers_.clip.norm ? applyTogether(shard, lane, push, std::move(whole))
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
  // Takes its place in line for the lock at once, where there is no log to wait for.
  if (!shard.logs()) return applyInTurn(shard, lane, std::move(whole), scale, {});
  const uint64_t bytes = whole.gradient.bytes().size();
  return shard.roomToLog(bytes).then(
      [this, &shard, &lane, whole = std::move(whole), scale](ByteBudget::Lease room) mutable {
        return applyInTurn(shard, lane, std::move(whole), scale, std::move(room));
      });
}

kj::Promise<Result<PushAnswer>> Locked::applyInTurn(Shard& shard, Lane& lane, Whole whole, double scale,
                                                    ByteBudget::Lease room) {
  return shard.lock().acquire().then([this, &shard, &lane, whole = std::move(whole), scale,
                                      room = std::move(room)](ShardLock::Guard guard) mutable {
    return applyUnderLock(shard, lane, std::move(whole), scale, std::move(room))
        .then([guard = kj::mv(guard)](Result<PushAnswer> answer) { return answer; });
  });
}

kj::Promise<Result<PushAnswer>> Locked::applyUnderLock(Shard& shard, Lane& lane, Whole whole, double scale,
                                                       ByteBudget::Lease room) {
  const uint64_t staleness = whole.source.staleness = stalenessOf(shard, whole.source.basis);
  if (modifiers_.staleness.tooOld(staleness)) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::stale, shard.version(), staleness});
  }
  auto lacking = shard.pushed().lacking(whole.source);
  if (lacking.empty()) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), staleness});
  const uint64_t number = shard.beginUpdateAlone();
  const UpdateScalars update = shard.scalars(number, modifiers_.staleness.factor(staleness));
  GradientChange change{.scale = static_cast<float>(scale)};
  if (modifiers_.clip.value) change.limit = static_cast<float>(*modifiers_.clip.value);
  // A fresh gradient has nothing to compensate, but its square counts.
  if (whole.pulled && (staleness > 0 || modifiers_.delay.adaptive)) {
    change.pulled = whole.pulled->view.values;
    change.lambda = static_cast<float>(modifiers_.delay.lambda);
    change.adaptive = modifiers_.delay.adaptive;
  }
  return applyTo(shard, lane, whole.gradient, change, update, std::move(lacking))
      .then([&shard, whole = std::move(whole), update,
             room = std::move(room)](Status status) mutable -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        const Version made = shard.endUpdate({update, whole.gradient, {&whole.source, 1}}, std::move(room));
        return PushAnswer{PushOutcome::applied, made, whole.source.staleness, 1, shard.logged()};
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
  push.pendingAnswer = kj::mv(answer.promise);
  double square = 0;
  for (const Part& part : *parts) square += squaredNorm(part.whole.gradient.values());
  const double scale = modifiers_.clip.scale(square);
  auto applied = kj::heapArrayBuilder<kj::Promise<void>>(parts->size());
  for (Part& part : *parts) {
    // Each part by itself: joined promises let go of nothing before the last of them is ready. Whoever held
    // one shard's lock until it has the next one's might wait for somebody who does likewise.
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
  auto answer = pullSnapshot(*snapshots_, shard, lane, pull, offset, count);
  if (modifiers_.delay.lambda == 0 || !pull.trainer) return answer;
  return answer.then([this, &shard, session = pull.trainer->session](Result<PullAnswer> answer) {
    if (answer.ok()) pulled_.note(session, shard.range().id, snapshotOf(*answer));
    return answer;
  });
}

}  // namespace psd
