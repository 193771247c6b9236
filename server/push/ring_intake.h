#pragma once

#include <memory>

#include <kj/async.h>

#include "server/policy/served_model.h"
#include "server/push/push_slice.h"

namespace psd {

/// Takes gradients out of the device rings that trainers write to: each slice is copied to memory that no
/// trainer can reach before its values are inspected, and slices continue in arrival order. Owned by one
/// event loop.
class RingIntake {
 public:
  /// `lane`: of the slice's shard in `model`.
  /// Returns `slice` with its gradient copied, to memory of the shard's device if `toDevice`, else to host
  /// memory. Resolves once every earlier slice has dropped its `turn`. ErrorCode::nonFinite if the gradient
  /// holds NaN or infinity.
  kj::Promise<Result<PushSlice>> take(const std::shared_ptr<ServedModel>& model, Lane& lane, bool toDevice,
                                      PushSlice slice);

  /// Like take(), for a gradient that is already in device memory of the daemon; without ordering.
  static kj::Promise<Result<PushSlice>> copy(const std::shared_ptr<ServedModel>& model, Lane& lane,
                                             bool toDevice, PushSlice slice);

 private:
  kj::Maybe<kj::ForkedPromise<void>> turn_;  // of the previous slice; null: none yet
};

}  // namespace psd
