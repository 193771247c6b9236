#include "server/policy/shard_updates.h"

#include <utility>

#include "server/policy/store_promise.h"

namespace psd {

bool takenInPlace(const Shard& shard, const Gradient& gradient) {
  return !shard.divided() && !(shard.logs() && gradient.inSharedMemory());
}

Result<std::optional<GatheredGradient>> gatherSlice(StagingPool& pool, const Shard& shard, ShardPush& push,
                                                    uint64_t offset, const Gradient& slice) {
  const uint64_t count = shard.range().count;
  if (push.gathered.empty()) {
    PSD_ASSIGN_OR_RETURN(push.gathered, GatheredGradient::make(pool, count));
  }
  PSD_RETURN_IF_ERROR(push.gathered.put(shard.range().id, offset, slice));
  push.taken += slice.size();
  if (push.taken < count) return std::optional<GatheredGradient>();
  return std::optional(std::exchange(push.gathered, {}));
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
