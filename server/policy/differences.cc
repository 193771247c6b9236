#include "server/policy/differences.h"

#include <utility>

#include "server/policy/shard_updates.h"

namespace psd {
namespace {

/// With the shard's lock held exclusively. `space`: log space reserved for the update.
kj::Promise<Result<PushAnswer>> subtract(Shard& shard, Lane& lane, WholeShard whole,
                                         ByteBudget::Lease space) {
  auto lacking = shard.pushed().lacking(whole.source);
  if (lacking.empty()) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), 0});
  shard.beginUpdate();
  UpdateScalars update = shard.scalars(shard.version().value + 1);
  update.learningRate = 1;
  update.difference = true;
  return applyTo(shard, lane, whole.gradient, {}, update, std::move(lacking))
      .then([&shard, whole = std::move(whole), update,
             space = std::move(space)](Status status) mutable -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        const Version made = shard.endUpdate(whole.update(update), std::move(space));
        return PushAnswer{PushOutcome::applied, made, 0, 1, shard.logged()};
      });
}

}  // namespace

kj::Promise<Result<PushAnswer>> takeDifference(StagingPool& pool, Shard& shard, Lane& lane, ShardPush& push,
                                               uint64_t offset, const Gradient& slice) {
  return takeSlice(pool, shard, push, offset, slice, false, [&shard, &lane](WholeShard whole) {
    return shard.reserveLogSpace(whole.gradient.bytes().size())
        .then([&shard, &lane, whole = std::move(whole)](ByteBudget::Lease space) mutable {
          return shard.lock().acquire().then([&shard, &lane, whole = std::move(whole),
                                              space = std::move(space)](ShardLock::Guard guard) mutable {
            return subtract(shard, lane, std::move(whole), std::move(space))
                .then([guard = kj::mv(guard)](Result<PushAnswer> answer) { return answer; });
          });
        });
  });
}

}  // namespace psd
