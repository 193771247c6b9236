#include "server/store/arena_plan.h"
#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/storage.cuh"

namespace psd {
namespace {

constexpr uint64_t kStagedBytesMax = uint64_t{4} << 30;

/// One CUDA device. Thread-safe.
class CudaBackend : public Backend {
 public:
  CudaBackend(int device, std::string model) : device_(device), model_(std::move(model)) {}

  std::string describe() const override { return cudaDeviceName(device_) + " (" + model_ + ")"; }
  std::unique_ptr<Lane> makeLane() override { return std::make_unique<CudaLane>(device_); }

  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(std::span<const uint64_t> elementCounts,
                                                              const Optimizer& optimizer) override {
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaSetDevice", cudaSetDevice(device_)));
    size_t freeBytes = 0;
    size_t totalBytes = 0;
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaMemGetInfo", cudaMemGetInfo(&freeBytes, &totalBytes)));
    const std::vector<Slot> slots = optimizer.slots();
    PSD_ASSIGN_OR_RETURN(const ArenaPlan plan,
                         planArena(elementCounts, slots.size(), cudaDeviceName(device_), totalBytes));
    auto arena = std::make_shared<DeviceArena>(DeviceArena{device_, optimizer, nullptr, gradients_});
    PSD_ASSIGN_OR_RETURN(arena->floats, DeviceFloats::allocate(device_, plan.elements * (1 + slots.size())));
    float* const weights = arena->floats->data();
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot].initialValue == 0.f) continue;  // the memory is zeroed
      PSD_RETURN_IF_ERROR(cudaStatus(
          device_, "fill kernel",
          fillOnDevice(weights + (slot + 1) * plan.elements, plan.elements, slots[slot].initialValue)));
    }
    // The lanes' streams do not wait for the default stream, where the memory is being filled.
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaDeviceSynchronize", cudaDeviceSynchronize()));
    std::vector<std::unique_ptr<ShardStorage>> shards;
    for (size_t shard = 0; shard < elementCounts.size(); ++shard) {
      float* const shardWeights = weights + plan.begins[shard];
      std::vector<float*> shardSlots;
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        shardSlots.push_back(shardWeights + (slot + 1) * plan.elements);
      }
      shards.push_back(
          std::make_unique<CudaStorage>(arena, elementCounts[shard], shardWeights, std::move(shardSlots)));
    }
    return std::move(shards);  // nvcc does not move by itself into a Result
  }

 private:
  const int device_;
  const std::string model_;
  const std::shared_ptr<StagingPool> gradients_ = makeDevicePool(kStagedBytesMax);
};

Error unusable(int index, const std::string& reason) {
  return {ErrorCode::invalidArgument, "device " + cudaDeviceName(index) + ": " + reason};
}

}  // namespace

Result<std::shared_ptr<Backend>> makeCudaBackend(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return unusable(index, std::string("this machine has 0 usable CUDA devices (") +
                               cudaGetErrorString(error) + "); use cpu");
  }
  if (index < 0 || index >= count) {
    return unusable(index,
                    "this machine has " + std::to_string(count) + " CUDA device(s), numbered from cuda:0");
  }
  cudaDeviceProp properties;
  PSD_RETURN_IF_ERROR(
      cudaStatus(index, "cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index)));
  PSD_RETURN_IF_ERROR(cudaStatus(index, "cudaSetDevice", cudaSetDevice(index)));
  if (const cudaError_t error = checkDeviceCode(); error != cudaSuccess) {
    return unusable(index, std::string(properties.name) + " cannot run this build (" +
                               cudaGetErrorString(error) + "); see CMAKE_CUDA_ARCHITECTURES");
  }
  return std::shared_ptr<Backend>(std::make_shared<CudaBackend>(index, properties.name));
}

int cudaDeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace psd
