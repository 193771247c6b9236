#pragma once

#include <memory>

#include <kj/async.h>

#include "server/policy/served_model.h"
#include "server/push/push_slice.h"

namespace psd {

/// Takes gradients out of the rings that trainers write to on devices: each slice is copied to where no
/// trainer reaches before anything looks at its values, and the slices go on in the order in which they came.
/// Belongs to an event loop.
class RingIntake {
 public:
  /// `lane`: for the shard of `model` that the slice is of.
  /// `slice` with its gradient copied, to memory of the shard's device or else to the host's; resolves once
  /// every slice before it has dropped its `turn`. ErrorCode::nonFinite where the gradient holds NaN or
  /// infinity.
  kj::Promise<Result<PushSlice>> take(const std::shared_ptr<ServedModel>& model, Lane& lane, bool toDevice,
                                      PushSlice slice);

  /// `slice` with its gradient, which is in memory of the shard's device, copied as take() does, in no order.
  static kj::Promise<Result<PushSlice>> copy(const std::shared_ptr<ServedModel>& model, Lane& lane,
                                             bool toDevice, PushSlice slice);

 private:
  kj::Maybe<kj::ForkedPromise<void>> turn_;  // of the next slice; null: of the first
};

}  // namespace psd
