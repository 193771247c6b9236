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

/// The memory in which all policies gather gradients before they apply them: at most `bytesMax`
/// (limits.staged_bytes).
std::shared_ptr<StagingPool> makeGradientPool(uint64_t bytesMax);

/// One shard's gradient, assembled from its slices. Empty until make(). Used by one thread at a time.
class GatheredGradient {
 public:
  GatheredGradient() = default;
  /// ErrorCode::overloaded, naming the limit, if the pool has no space for `elements` more.
  static Result<GatheredGradient> make(StagingPool& pool, uint64_t elements);

  bool empty() const { return values_ == nullptr; }
  /// Decodes a slice of the shard's gradient to its offset. ErrorCode::nonFinite if a slice copied from
  /// memory shared with the trainer contains NaN or infinity, even if it was finite when it was checked in
  /// place.
  Status put(ShardId shard, uint64_t offset, const Gradient& slice);
  std::span<const float> values() const { return {values_.get(), elements_}; }
  /// The values, with shared ownership, for a caller that outlives this object. Empty if the gradient is.
  ReadView view() const { return {values(), values_}; }

 private:
  std::shared_ptr<float> values_;  // returned to the pool on release
  uint64_t elements_ = 0;
};

}  // namespace psd
