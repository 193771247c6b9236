#include "server/policy/hogwild.h"

#include "server/policy/store_promise.h"

namespace psd {

PolicyFactory Hogwild::read(ObjectReader&) {
  return [](const PolicyScope&) { return std::make_unique<Hogwild>(); };
}

kj::Promise<Result<PushAnswer>> Hogwild::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                              Gradient gradient) {
  if (push.number == 0) {
    push.number = shard.beginUpdate();
    push.staleness = stalenessOf(shard, push);
  }
  UpdateScalars update{push.number, shard.learningRate(push.number)};
  push.pending++;
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().apply(lane, offset, gradient, update, std::move(done));
                              })
      .then([&shard, &push](Status status) -> Result<PushAnswer> {
        push.pending--;
        if (!status.ok()) return status.error();
        if (push.pending > 0 || push.arrived.covered() < shard.range().count) {
          return PushAnswer{PushOutcome::received, shard.version(), push.staleness};
        }
        return PushAnswer{PushOutcome::applied, shard.endUpdate(), push.staleness, 1};
      });
}

kj::Promise<Result<PullAnswer>> Hogwild::pull(Shard& shard, Lane& lane, ShardPull&, uint64_t offset,
                                              uint64_t count) {
  // The version is read before the values: updates that land in between make the values newer than
  // they say, never older, so staleness is not understated.
  Version version = shard.version();
  return storePromise<Result<ReadView>>(
             shard,
             [&](ShardStorage::ReadDone done) { shard.storage().read(lane, offset, count, std::move(done)); })
      .then([version](Result<ReadView> view) -> Result<PullAnswer> {
        if (!view.ok()) return view.error();
        return PullAnswer{version, std::move(*view)};
      });
}

}  // namespace psd
