#pragma once

#include <span>

#include "common/status/status.h"
#include "server/optimizer/optimizer.h"
#include "server/store/parameter_store.h"

namespace psd {

// Consistency of weights and state for optimizers whose weights are a function of the state
// (Optimizer::derivesWeights()). None of these does anything for other optimizers. All block.

/// The weights, then each slot of the optimizer, with as many values each: whole rows of `dim` values, or
/// elements of tensors, for which `dim` has no meaning.
using Planes = std::span<const std::span<float>>;

/// Sets the weights to those that the state yields.
void deriveWeights(const Optimizer& optimizer, uint32_t dim, Planes planes);
/// Sets the state to one that yields the weights up to rounding, and the weights to what it yields.
void deriveState(const Optimizer& optimizer, uint32_t dim, Planes planes);

/// deriveWeights() and deriveState() of `count` elements of a shard from `offset` on. No update may be in
/// progress. deriveShardState() requires the slots to have their initial values.
Status deriveShardWeights(const Optimizer& optimizer, Shard& shard, Lane& lane, uint64_t offset,
                          uint64_t count);
Status deriveShardState(const Optimizer& optimizer, Shard& shard, Lane& lane, uint64_t offset,
                        uint64_t count);
/// deriveShardState() of all shards, whose weights were set while the slots have their initial values.
Status deriveStoreState(ParameterStore& store);

/// Whether state of `before` can continue with `optimizer`, which has the same slots.
/// ErrorCode::invalidArgument if the learning rates differ: the state holds for one.
Status checkRateOfState(const Optimizer& before, const Optimizer& optimizer);

}  // namespace psd
