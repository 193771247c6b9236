#pragma once

#include "server/policy/update_policy.h"

namespace psd {

/// Takes one slice of a difference that a bridge pushes for a shard, and with the last one subtracts the
/// whole from the parameters as they are then: one update, under the shard's lock, which it holds alone, past
/// the optimizer and all modifiers. It is noted as the bridge's, also under a policy that notes no pushes.
kj::Promise<Result<PushAnswer>> takeDifference(StagingPool& pool, Shard& shard, Lane& lane, ShardPush& push,
                                               uint64_t offset, const Gradient& slice);

}  // namespace psd
