#pragma once

#include <memory>
#include <vector>

#include <cuda_runtime.h>

#include "server/store/backend.h"
#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/device.cuh"
#include "server/store/staging_pool.h"

namespace psd {

class CudaLane;

/// Memory shared by the shards of one allocation. Immutable except for the floats themselves.
struct DeviceArena {
  int device;
  std::shared_ptr<DeviceFloats> floats;    ///< weights, then slots
  std::shared_ptr<StagingPool> gradients;  ///< device memory for staged gradients
  std::shared_ptr<StagingPool> copies;     ///< device memory for gradients copied from shared memory
};

/// A shard in the device memory of its allocation. Thread-safe as ShardStorage requires: operations of
/// several lanes run concurrently and race element by element. Must not be destroyed while an operation is in
/// progress.
class CudaStorage : public ShardStorage {
 public:
  CudaStorage(std::shared_ptr<const DeviceArena> arena, const ShardRequest& request, float* weights,
              std::vector<float*> slots)
      : arena_(std::move(arena)),
        count_(request.elements),
        optimizer_(request.optimizer),
        weights_(weights),
        slots_(std::move(slots)) {}

  uint64_t elementCount() const override { return count_; }
  const Optimizer& optimizer() const override { return optimizer_; }
  void setOptimizer(const Optimizer& optimizer) override { optimizer_ = optimizer; }
  bool synchronous() const override { return false; }

  void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) override;
  void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
             Done done) override;
  void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                    const UpdateScalars& update, Done done) override;
  void take(Lane& lane, std::span<const float> onDevice, StageDone done) override;
  void fetch(Lane& lane, std::span<const float> onDevice, ReadDone done) override;
  void readTo(Lane& lane, uint64_t offset, std::span<float> onDevice, Done done) override;
  void put(Lane& lane, std::span<const float> values, std::span<float> onDevice, Done done) override;
  void stage(Lane& lane, ReadView gradient, StageDone done) override;
  void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients, DistancesDone done) override;
  void addProducts(Lane& lane, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                   InnerProducts sums, ProductsDone done) override;
  void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                      SquareDone done) override;
  void applyCombined(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                     const UpdateScalars& update, Done done) override;
  void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
               ReadDone done) override;
  void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override;
  void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override;
  void readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) override;
  void writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                 Done done) override;

 private:
  /// Queues one step over weights[offset …] with the gradient in the lane's scratch memory.
  Status step(CudaLane& lane, uint64_t offset, uint64_t count, const std::optional<DenseCode>& code,
              const UpdateScalars& update, const std::optional<DeviceChange>& change = {});
  /// Queues one step over weights[offset …] with a gradient in device memory.
  Status stepInPlace(CudaLane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                     const UpdateScalars& update);
  /// Queues one step over the weights in the range whose gradient is not zero, of which there are `entries`.
  Status stepAtEntries(CudaLane& lane, uint64_t offset, const Gradient& gradient, uint64_t entries,
                       const UpdateScalars& update, std::vector<std::shared_ptr<float>>& staged);
  /// Queues one step over weights[offset …] with the encoded gradient, which must fit the lane's scratch
  /// memory; without compensation.
  Status stepInCode(CudaLane& lane, uint64_t offset, const Gradient& gradient, const DenseCode& code,
                    const GradientChange& change, const UpdateScalars& update,
                    std::vector<std::shared_ptr<float>>& staged);
  /// Queues one step over weights[offset …] with the values of the gradient, which the host decodes piece by
  /// piece, and the pulled weights, if any.
  Status stepDecoded(CudaLane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                     const UpdateScalars& update, std::vector<std::shared_ptr<float>>& staged);
  Status makeMeanSquares();
  /// `change` for a piece at `offset` of the shard, with the pulled weights in the lane's second scratch
  /// memory.
  std::optional<DeviceChange> onDevice(const CudaLane& lane, const GradientChange& change,
                                       uint64_t offset) const;
  /// Calls `visit(at, count)` for each piece of the combined gradient, in the lane's scratch memory.
  template <class Visit>
  Status combinePieces(CudaLane& lane, std::span<const StagedGradient> gradients,
                       const Combination& combination, const Visit& visit);
  void copyIn(Lane& lane, float* to, std::span<const float> values, Done done);
  void copyOut(Lane& lane, const float* from, uint64_t count, ReadDone done);

  const std::shared_ptr<const DeviceArena> arena_;
  const uint64_t count_;
  Optimizer optimizer_;
  float* const weights_;
  const std::vector<float*> slots_;
  std::shared_ptr<DeviceFloats> meanSquares_;  // for adaptive compensation, allocated on first use
};

/// Allocates device memory that another process can map, through CUDA inter-process communication.
/// ErrorCode::overloaded, naming the bytes, if the device is out of memory; ErrorCode::internal if the
/// system does not support it.
Result<std::shared_ptr<SharedDeviceMemory>> shareDeviceMemory(int device, uint64_t bytes);

/// A pool of memory on the current device for staged gradients, initially without a limit.
std::shared_ptr<StagingPool> makeDevicePool();

}  // namespace psd
