#include "server/store/arena_plan.h"
#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/combine.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/storage.cuh"
#include "server/store/rows/cuda/row_storage.cuh"

namespace psd {
namespace {

/// Device memory that stays free after the parameters and after each chunk of rows, for later allocations
/// that would otherwise fail while a model is loaded: the lanes of event loops, rounds and checkpoints.
constexpr uint64_t kReservedBytes = uint64_t{256} << 20;

/// One CUDA device. Thread-safe.
class CudaBackend : public Backend {
 public:
  CudaBackend(int device, std::string model) : device_(device), model_(std::move(model)) {}

  std::string describe() const override { return cudaDeviceName(device_) + " (" + model_ + ")"; }
  std::unique_ptr<Lane> makeLane() override { return std::make_unique<CudaLane>(device_); }
  void limitStagedBytes(uint64_t bytes) override { gradients_->setLentBytesMax(bytes); }

  uint32_t comparedGradientsMax() const override { return kCombinedOnDeviceMax; }

  bool sharesMemory() const override { return true; }
  Result<std::shared_ptr<SharedDeviceMemory>> shareMemory(uint64_t bytes) override {
    return shareDeviceMemory(device_, bytes);
  }

  using Backend::allocate;
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> requests) override {
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaSetDevice", cudaSetDevice(device_)));
    size_t freeBytes = 0;
    size_t totalBytes = 0;
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaMemGetInfo", cudaMemGetInfo(&freeBytes, &totalBytes)));
    PSD_ASSIGN_OR_RETURN(const ArenaPlan plan, planArena(requests, cudaDeviceName(device_), totalBytes));
    const uint64_t bytes = (plan.elements + plan.slotElements) * sizeof(float);
    if (bytes + kReservedBytes > freeBytes) {
      return notEnoughMemory(cudaDeviceName(device_), bytes,
                             std::to_string(freeBytes) + " bytes are free, and " +
                                 std::to_string(kReservedBytes) + " of them are reserved");
    }
    auto arena = std::make_shared<DeviceArena>(DeviceArena{device_, nullptr, gradients_, copies_});
    PSD_ASSIGN_OR_RETURN(arena->floats, DeviceFloats::allocate(device_, plan.elements + plan.slotElements));
    std::vector<std::unique_ptr<ShardStorage>> shards;
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<Slot> kinds = requests[i].optimizer.slots();
      std::vector<float*> slots;
      for (size_t slot = 0; slot < kinds.size(); ++slot) {
        slots.push_back(arena->floats->data() + plan.elements + plan.slotBegins[i][slot]);
        if (kinds[slot].initialValue == 0.f) continue;  // the memory is already zeroed
        PSD_RETURN_IF_ERROR(
            cudaStatus(device_, "fill kernel",
                       fillOnDevice(slots.back(), requests[i].elements, kinds[slot].initialValue)));
      }
      shards.push_back(std::make_unique<CudaStorage>(
          arena, requests[i], arena->floats->data() + plan.begins[i], std::move(slots)));
    }
    // The lanes' streams do not wait for the default stream, which fills the memory.
    PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaDeviceSynchronize", cudaDeviceSynchronize()));
    return std::move(shards);  // nvcc does not move into a Result implicitly
  }

  Result<std::unique_ptr<RowStorage>> makeRowStorage(uint32_t dim, const Optimizer& optimizer) override {
    PSD_RETURN_IF_ERROR(rowStreams_->prepare());
    return std::unique_ptr<RowStorage>(
        std::make_unique<CudaRowStorage>(device_, kReservedBytes, dim, optimizer, rowStreams_));
  }

 private:
  const int device_;
  const std::string model_;
  const std::shared_ptr<StagingPool> gradients_ = makeDevicePool();
  const std::shared_ptr<StagingPool> copies_ = makeDevicePool();
  const std::shared_ptr<RowStreams> rowStreams_ = std::make_shared<RowStreams>(device_);
};

/// Number of devices, or why there are none.
struct DevicesFound {
  int count = 0;
  std::string none;
  bool broken = false;  ///< devices may exist but cannot be used
};

std::string releaseName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

DevicesFound findDevices() {
  DevicesFound found;
  const cudaError_t error = cudaGetDeviceCount(&found.count);
  if (error == cudaSuccess) return found;
  cudaGetLastError();  // clears the error, which the next kernel launch would report
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return {0, "it has no CUDA driver"};
  if (error == cudaErrorNoDevice) return {0, cudaGetErrorString(error)};
  std::string why = std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  if (error == cudaErrorInsufficientDriver) {
    why +=
        ": the driver is for CUDA " + releaseName(driver) + ", this psd for " + releaseName(CUDART_VERSION);
  }
  return {0, why, true};
}

Error unusable(int index, const std::string& reason) {
  return {ErrorCode::invalidArgument, "device " + cudaDeviceName(index) + ": " + reason};
}

}  // namespace

Result<std::shared_ptr<Backend>> makeCudaBackend(int index) {
  const DevicesFound found = findDevices();
  if (found.count == 0) {
    return unusable(index, "this machine has 0 usable CUDA devices (" + found.none + "); use cpu");
  }
  if (index < 0 || index >= found.count) {
    return unusable(
        index, "this machine has " + std::to_string(found.count) + " CUDA device(s), numbered from cuda:0");
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

Result<int> cudaDeviceCount() {
  const DevicesFound found = findDevices();
  if (found.broken) return Error{ErrorCode::unavailable, found.none};
  return found.count;
}

}  // namespace psd
