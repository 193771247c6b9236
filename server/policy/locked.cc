#include "server/policy/locked.h"

#include "server/policy/store_promise.h"

namespace psd {

PolicyFactory Locked::read(ObjectReader&) {
  return [](const PolicyScope& scope) { return std::make_unique<Locked>(scope); };
}

kj::Promise<Result<PushAnswer>> Locked::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                             Gradient gradient) {
  uint64_t whole = shard.range().count;
  if (gradient.size() == whole) return applyWhole(shard, lane, push, gradient);
  if (push.gathered.empty()) {
    auto gathered = GatheredGradient::make(*staging_, whole);
    if (!gathered.ok()) return Result<PushAnswer>(gathered.error());
    push.gathered = *std::move(gathered);
  }
  push.gathered.put(offset, gradient);
  if (push.arrived.covered() == whole) return applyWhole(shard, lane, push, push.gathered.values());
  return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), 0});
}

kj::Promise<Result<PushAnswer>> Locked::applyWhole(Shard& shard, Lane& lane, ShardPush& push,
                                                   Gradient gradient) {
  return shard.lock().acquire().then([this, &shard, &lane, &push, gradient](ShardLock::Guard guard) {
    push.number = shard.beginUpdateAlone();
    push.staleness = stalenessOf(shard, push);
    UpdateScalars update{push.number, shard.learningRate(push.number)};
    return storePromise<Status>(shard,
                                [&](ShardStorage::Done done) {
                                  shard.storage().apply(lane, 0, gradient, update, std::move(done));
                                })
        .then([&shard, &push, update, gradient, guard = kj::mv(guard)](Status status) -> Result<PushAnswer> {
          if (!status.ok()) return status.error();
          const UpdateSource source = sourceOf(push);
          const Version made = shard.endUpdate({update, gradient, {&source, 1}});
          push.gathered = {};
          return PushAnswer{PushOutcome::applied, made, push.staleness, 1, shard.logged()};
        });
  });
}

}  // namespace psd
