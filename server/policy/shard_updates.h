#pragma once

#include <optional>
#include <vector>

#include <kj/async.h>

#include "server/policy/update_policy.h"

namespace psd {

/// Whether a gradient of a whole shard may be applied from where it lies: not where it may change between
/// that and the log's copy of it, nor where only some elements are to get it.
bool takenInPlace(const Shard& shard, const Gradient& gradient);

/// Takes a slice of a shard's gradient. Gives the gradient once all of it is there.
Result<std::optional<GatheredGradient>> gatherSlice(StagingPool& pool, const Shard& shard, ShardPush& push,
                                                    uint64_t offset, const Gradient& slice);

/// Applies to some elements of the shard, `ranges`, what the gradient, all of it and in host memory where
/// those are not all, has for them.
kj::Promise<Status> applyTo(Shard& shard, Lane& lane, const Gradient& gradient, const GradientChange& change,
                            const UpdateScalars& update, std::vector<PushedRange> ranges, size_t next = 0);

}  // namespace psd
