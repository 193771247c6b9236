#include "server/policy/hogwild.h"

#include "server/policy/store_promise.h"

namespace psd {

PolicyPlan Hogwild::read(ObjectReader& in) {
  const Modifiers modifiers =
      readModifiers(in, {.delayCompensation =
                             "needs to know what each trainer pulled, which nobody does while updates land "
                             "in what is read; take locked or bounded_staleness",
                         .clipNorm = "needs the whole gradient before any of it is applied; take locked or "
                                     "bounded_staleness, or clip.value"});
  return {[modifiers](const PolicyScope&) { return std::make_unique<Hogwild>(modifiers); },
          modifiers.changesGradients()};
}

Hogwild::Hogwild(const Modifiers& modifiers) : staleness_(modifiers.staleness) {
  if (modifiers.clip.value) change_.limit = static_cast<float>(*modifiers.clip.value);
}

kj::Promise<Result<PushAnswer>> Hogwild::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                              Gradient gradient) {
  if (push.number == 0 && !push.dropped) {
    push.staleness = stalenessOf(shard, push.basis);
    push.dropped = staleness_.tooOld(push.staleness);
    if (!push.dropped) push.number = shard.beginUpdate();
  }
  if (push.dropped) {
    const bool whole = push.arrived.covered() == shard.range().count;
    return Result<PushAnswer>(
        PushAnswer{whole ? PushOutcome::stale : PushOutcome::received, shard.version(), push.staleness});
  }
  const UpdateScalars update = shard.scalars(push.number, staleness_.factor(push.staleness));
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().applyChanged(lane, offset, gradient, change_, update,
                                                             std::move(done));
                              })
      .then([&shard, &push, count = gradient.size()](Status status) -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        push.taken += count;
        if (push.taken < shard.range().count) {
          return PushAnswer{PushOutcome::received, shard.version(), push.staleness};
        }
        return PushAnswer{PushOutcome::applied, shard.endUpdate(), push.staleness, 1};
      });
}

kj::Promise<Result<PullAnswer>> Hogwild::pull(Shard& shard, Lane& lane, ShardPull&, uint64_t offset,
                                              uint64_t count) {
  // The version is read before the values: updates that land in between make the values newer than
  // it says, never older, so staleness is not understated.
  Version version = shard.version();
  return storePromise<Result<ReadView>>(
             shard,
             [&](ShardStorage::ReadDone done) { shard.storage().read(lane, offset, count, std::move(done)); })
      .then([version](Result<ReadView> view) -> Result<PullAnswer> {
        if (!view.ok()) return view.error();
        return PullAnswer{version, std::move(*view)};
      });
}

kj::Promise<Result<Version>> Hogwild::pullTo(Shard& shard, Lane& lane, ShardPull&, uint64_t offset,
                                             std::span<float> onDevice) {
  const Version version = shard.version();  // before the values, as in pull()
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().readTo(lane, offset, onDevice, std::move(done));
                              })
      .then([version](const Status& status) -> Result<Version> {
        if (!status.ok()) return status.error();
        return version;
      });
}

}  // namespace psd
