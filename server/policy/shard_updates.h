#pragma once

#include <vector>

#include <kj/async.h>
#include <kj/function.h>

#include "server/policy/update_policy.h"

namespace psd {

/// A dense shard's complete gradient.
struct WholeShard {
  SessionId session;
  UpdateSource source;
  Gradient gradient;
  GatheredGradient gathered = {};  ///< owns the gradient's memory, if it was gathered

  /// The update that the gradient made, for the log. A view of this object.
  AppliedUpdate update(const UpdateScalars& scalars) const {
    return {
        .scalars = scalars, .gradient = gradient, .sources = {&source, 1}, .owner = gathered.view().owner};
  }
};

/// Applies a shard's complete gradient, as the policy does it.
using ApplyWhole = kj::Function<kj::Promise<Result<PushAnswer>>(WholeShard)>;

/// Gathers a slice of a shard's gradient, and applies the gradient with its last slice. A gradient that
/// arrives in a single slice is applied in place, unless `copied` is set (the policy retains it beyond the
/// call), the trainer may modify it before the log has a copy, or only some elements of the shard lack it.
kj::Promise<Result<PushAnswer>> takeSlice(StagingPool& pool, Shard& shard, ShardPush& push, uint64_t offset,
                                          const Gradient& slice, bool copied, ApplyWhole apply);

/// Applies the gradient to the elements `ranges` of the shard, starting with range `next`. `gradient` is the
/// shard's whole gradient; it must be in host memory if `ranges` do not cover the shard.
kj::Promise<Status> applyTo(Shard& shard, Lane& lane, const Gradient& gradient, const GradientChange& change,
                            const UpdateScalars& update, std::vector<PushedRange> ranges, size_t next = 0);

}  // namespace psd
