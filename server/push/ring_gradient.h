#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <kj/async.h>

#include "server/store/gradient.h"
#include "server/store/shard.h"

namespace psd {

/// A slice of a gradient in memory that no trainer reaches.
struct OwnGradient {
  Gradient gradient;
  std::shared_ptr<const void> owner;  ///< keeps it readable
};

/// Copies a slice, for element `offset` of the shard, from memory of the shard's device: to memory of the
/// device, or else to the host's. ErrorCode::nonFinite where it holds NaN or infinity. `onDevice` is kept
/// by the caller until then; what a trainer changes there meanwhile is in the copy or not.
kj::Promise<Result<OwnGradient>> copyGradient(Shard& shard, Lane& lane, uint64_t offset,
                                              std::span<const float> onDevice, bool toDevice);

}  // namespace psd
