#include "server/policy/shard_updates.h"

#include <utility>

#include "server/policy/store_promise.h"

namespace psd {

namespace {

bool canApplyInPlace(const Shard& shard, const Gradient& gradient) {
  return !shard.divided() && !(shard.logs() && gradient.inSharedMemory());
}

Status gather(StagingPool& pool, const Shard& shard, ShardPush& push, uint64_t offset,
              const Gradient& slice) {
  if (push.gathered.empty()) {
    PSD_ASSIGN_OR_RETURN(push.gathered, GatheredGradient::make(pool, shard.range().count));
  }
  PSD_RETURN_IF_ERROR(push.gathered.put(shard.range().id, offset, slice));
  push.taken += slice.size();
  return {};
}

kj::Promise<Result<PushAnswer>> gatherAndApply(StagingPool& pool, const Shard& shard, ShardPush& push,
                                               uint64_t offset, const Gradient& slice, ApplyWhole& apply) {
  if (Status gathered = gather(pool, shard, push, offset, slice); !gathered.ok()) {
    return Result<PushAnswer>(gathered.error());
  }
  if (push.taken < shard.range().count) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), 0});
  }
  WholeShard whole{push.trainer.session, sourceOf(push), push.gathered.values()};
  whole.gathered = std::exchange(push.gathered, {});
  return apply(std::move(whole));
}

}  // namespace

kj::Promise<Result<PushAnswer>> takeSlice(StagingPool& pool, Shard& shard, ShardPush& push, uint64_t offset,
                                          const Gradient& slice, bool copied, ApplyWhole apply) {
  if (!copied && slice.size() == shard.range().count && canApplyInPlace(shard, slice)) {
    return apply({push.trainer.session, sourceOf(push), slice});
  }
  if (!push.gathered.empty() || !shard.logs()) {
    return gatherAndApply(pool, shard, push, offset, slice, apply);
  }
  // Backpressure: while gradients wait for a slow disk, no further gradients are gathered.
  return shard.reserveLogSpace(0).then(
      [&pool, &shard, &push, offset, slice, apply = kj::mv(apply)](ByteBudget::Lease) mutable {
        return gatherAndApply(pool, shard, push, offset, slice, apply);
      });
}

kj::Promise<Status> applyTo(Shard& shard, Lane& lane, const Gradient& gradient, const GradientChange& change,
                            const UpdateScalars& update, std::vector<PushedRange> ranges, size_t next) {
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

}  // namespace psd
