#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/store/gradient.h"
#include "server/store/shard_storage.h"
#include "server/store/staging_pool.h"

namespace psd {

/// The memory in which gradients are gathered before they are applied: at most `bytesMax`
/// (limits.staged_bytes), whatever the policies.
std::shared_ptr<StagingPool> makeGradientPool(uint64_t bytesMax);

/// One shard's gradient, put together from its slices. Empty until make(). Used by one thread at a time.
class GatheredGradient {
 public:
  GatheredGradient() = default;
  /// ErrorCode::overloaded, naming the limit, when the pool has no room for `elements` more.
  static Result<GatheredGradient> make(StagingPool& pool, uint64_t elements);

  bool empty() const { return values_ == nullptr; }
  /// Decodes a slice of the shard's gradient into its place. ErrorCode::nonFinite where what was copied from
  /// memory that the trainer shares holds NaN or infinity, whatever it held when it was checked there.
  Status put(ShardId shard, uint64_t offset, const Gradient& slice);
  std::span<const float> values() const { return {values_.get(), elements_}; }
  /// The values for a caller that keeps them beyond this object. Empty if the gradient is.
  ReadView view() const { return {values(), values_}; }

 private:
  std::shared_ptr<float> values_;  // belongs to the pool
  uint64_t elements_ = 0;
};

}  // namespace psd
