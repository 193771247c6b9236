#pragma once

#include "server/policy/update_policy.h"

namespace psd {

/// Gathers one slice of a difference that a bridge pushes for a shard. With the last slice, subtracts the
/// whole difference from the current parameters as one update, under the shard's exclusive lock, bypassing
/// the optimizer and all modifiers. The update is recorded as the bridge's push, also under policies that
/// record no pushes.
kj::Promise<Result<PushAnswer>> takeDifference(StagingPool& pool, Shard& shard, Lane& lane, ShardPush& push,
                                               uint64_t offset, const Gradient& slice);

}  // namespace psd
