#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <cuda_runtime.h>

#include "server/store/cuda/device.cuh"
#include "server/store/shard_storage.h"
#include "server/store/staging_pool.h"

namespace psd {

/// A stream, pinned buffers for what travels over it, and device memory for the gradient at work. Nothing
/// waits for the device while it is in use: device memory is taken when the lane is made, pinned memory while
/// the pool grows to what is in flight. Owned by one event loop's thread; buffers and completions cross to
/// the driver's thread, and buffers anywhere. Its destruction waits for everything queued, so no completion
/// can outlive it.
class CudaLane : public Lane {
 public:
  /// Pinned buffers that an operation under way uses.
  using Staging = std::vector<std::shared_ptr<float>>;

  static constexpr uint64_t kScratchElements = uint64_t{1} << 20;  // 4 MiB: the largest default slice

  explicit CudaLane(int device);
  ~CudaLane() override;
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  cudaStream_t stream() const { return stream_; }

  /// Makes the device current on this thread. To be called first in every operation; fails for good
  /// when the lane could not be set up.
  Status begin();
  /// A pinned buffer for `count` floats.
  Result<std::shared_ptr<float>> staging(uint64_t count) { return pool_->acquire(count); }
  /// Device memory for kScratchElements floats, used by one step after the other.
  float* scratch() const { return scratch_->data(); }
  /// As much again, for what goes with that gradient.
  float* secondScratch() const { return scratch_->data() + kScratchElements; }
  /// Queues to[0 …) = bytes by way of a pinned buffer, which the caller hands to complete().
  Result<std::shared_ptr<float>> copyIn(void* to, std::span<const std::byte> bytes);
  /// The same for what `fill` writes into the pinned buffer of `count` floats.
  template <class Fill>
  Result<std::shared_ptr<float>> copyIn(float* to, uint64_t count, const Fill& fill) {
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<float> staged, staging(count));
    fill(std::span<float>(staged.get(), count));
    PSD_RETURN_IF_ERROR(queueCopy(to, staged.get(), count * sizeof(float)));
    return staged;
  }

  /// Calls `done` from the driver's thread when all that was queued so far has ended, with `queued` if
  /// that is an error, else with the stream's state. Keeps `staging` until then.
  void complete(Status queued, Staging staging, std::function<void(Status)> done);

 private:
  Status setUp();
  Status queueCopy(void* to, const void* from, uint64_t bytes);

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<DeviceFloats> scratch_;
  const Status setUp_;
  std::shared_ptr<StagingPool> pool_;
};

}  // namespace psd
