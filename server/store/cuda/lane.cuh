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

/// A stream, pinned buffers for what travels over it, and device memory for the gradient at work. Device
/// memory is taken when the lane is made, pinned memory while the pools grow to what is in flight: one for
/// what comes in, one for what goes out, so that slow readers are in nobody's way. Nothing waits for the
/// device while there is pinned memory. Owned by one event loop's thread; buffers and completions cross to
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
  /// Device memory for kScratchElements floats, used by one step after the other.
  float* scratch() const { return scratch_->data(); }
  /// Device memory for kScratchElements more, for what goes with the gradient in scratch().
  float* secondScratch() const { return scratch_->data() + kScratchElements; }
  /// forEachStaged() with pinned buffers; `staged` goes to complete(). To be used once in an operation,
  /// before anything is queued. More pieces than buffers wait for what the stream has so far.
  template <class Visit>
  Status forEachStaged(const StagedPieces& pieces, Staging& staged, const Visit& visit) {
    return psd::forEachStaged(*incoming_, pieces, staged, visit, [this] { return awaitStream(); });
  }
  /// Queues to[0 …) = bytes that lie in a pinned buffer.
  Status queueCopy(void* to, const void* from, uint64_t bytes);
  /// Queues to[0 …) = values that lie anywhere in host memory, by way of pinned buffers.
  Status copyIn(float* to, std::span<const float> values, Staging& staged);
  /// Host memory for `count` floats that go out: pinned, and once as much of that is lent as may be, other
  /// memory, to which a copy is slower and waits for the stream.
  Result<std::shared_ptr<float>> outgoing(uint64_t count);

  /// Calls `done` from the driver's thread when all that was queued so far has ended, with `queued` if
  /// that is an error, else with the stream's state. Keeps `staging` until then.
  void complete(Status queued, Staging&& staging, std::function<void(Status)> done);

 private:
  Status setUp();
  Status awaitStream();

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<DeviceFloats> scratch_;
  const Status setUp_;
  const std::shared_ptr<StagingPool> incoming_, outgoing_;  // pinned
  const std::shared_ptr<StagingPool> unpinned_;             // for what goes out when outgoing_ is all lent
};

}  // namespace psd
