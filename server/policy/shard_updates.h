#pragma once

#include <vector>

#include <kj/async.h>
#include <kj/function.h>

#include "server/policy/update_policy.h"

namespace psd {

/// A dense shard's gradient, all of it.
struct WholeShard {
  SessionId session;
  UpdateSource source;
  Gradient gradient;
  GatheredGradient gathered = {};  ///< where the gradient lies, if it was gathered
};

/// What a policy does with a shard's gradient once it is whole.
using ApplyWhole = kj::Function<kj::Promise<Result<PushAnswer>>(WholeShard)>;

/// Takes a slice of a shard's gradient, and applies the gradient with its last one. `copied`: also one that
/// came whole is gathered, since it is kept after the slice is gone. Else it is applied from where it lies,
/// unless it may change there before the log has its copy, or only some elements are to get it.
kj::Promise<Result<PushAnswer>> takeSlice(StagingPool& pool, Shard& shard, ShardPush& push, uint64_t offset,
                                          const Gradient& slice, bool copied, ApplyWhole apply);

/// Applies to some elements of the shard, `ranges`, what the gradient, all of it and in host memory where
/// those are not all, has for them.
kj::Promise<Status> applyTo(Shard& shard, Lane& lane, const Gradient& gradient, const GradientChange& change,
                            const UpdateScalars& update, std::vector<PushedRange> ranges, size_t next = 0);

}  // namespace psd
