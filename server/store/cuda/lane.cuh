#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <cuda_runtime.h>

#include "server/store/cuda/device.cuh"
#include "server/store/shard_storage.h"
#include "server/store/staged_pieces.h"
#include "server/store/staging_pool.h"

namespace psd {

/// A stream, pinned buffers for its transfers, and device memory for the gradient being applied. Device
/// memory is allocated with the lane; pinned memory grows with the transfers in flight, in separate pools for
/// incoming and outgoing data, so that slow readers do not block pushes. No operation waits for the device
/// while pinned memory is available. Owned by one event loop's thread; completions run on the driver's
/// thread, and buffers may be released on any thread. Destruction waits for all queued work, so no completion
/// outlives the lane.
class CudaLane : public Lane {
 public:
  /// Pinned buffers in use by an operation.
  using Staging = std::vector<std::shared_ptr<float>>;

  static constexpr uint64_t kScratchElements = uint64_t{1} << 20;  // 4 MiB: the largest default slice

  explicit CudaLane(int device);
  ~CudaLane() override;
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  cudaStream_t stream() const { return stream_; }

  /// Makes the device current on this thread. Must be called first in every operation; always fails if the
  /// lane could not be set up.
  Status begin();
  /// Device memory for kScratchElements floats, reused by consecutive steps.
  float* scratch() const { return scratch_->data(); }
  /// Device memory for another kScratchElements floats, for data that accompanies the gradient in scratch().
  float* secondScratch() const { return scratch_->data() + kScratchElements; }
  /// forEachStaged() with pinned buffers; `staged` must be passed to complete(). May be used once per
  /// operation, before anything is queued. If there are more pieces than buffers, waits for the work queued
  /// so far.
  template <class Visit>
  Status forEachStaged(const StagedPieces& pieces, Staging& staged, const Visit& visit) {
    return psd::forEachStaged(*incoming_, pieces, staged, visit, [this] { return awaitStream(); });
  }
  /// Queues to[0 …) = bytes of a pinned buffer.
  Status queueCopy(void* to, const void* from, uint64_t bytes);
  /// Queues to[0 …) = values from any host memory, through pinned buffers.
  Status copyIn(float* to, std::span<const float> values, Staging& staged);
  /// Host memory for `count` outgoing floats: pinned, or unpinned once the pinned limit is reached. A copy to
  /// unpinned memory is slower and waits for the stream.
  Result<std::shared_ptr<float>> outgoing(uint64_t count);

  /// Calls `done` from the driver's thread once all work queued so far has ended, with `queued` if that is an
  /// error, else with the stream's status. Keeps `staging` until then.
  void complete(Status queued, Staging&& staging, std::function<void(Status)> done);

 private:
  Status setUp();
  Status awaitStream();

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<DeviceFloats> scratch_;
  const Status setUp_;
  const std::shared_ptr<StagingPool> incoming_, outgoing_;  // pinned
  const std::shared_ptr<StagingPool> unpinned_;             // for outgoing data when outgoing_ is exhausted
};

}  // namespace psd
