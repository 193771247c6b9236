// Operations of the CUDA backend on memory that another process maps too, through CUDA inter-process
// communication.

#include <cstring>
#include <utility>

#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/storage.cuh"

namespace psd {
namespace {

/// Immutable except for the floats.
class ExportedMemory : public SharedDeviceMemory {
 public:
  ExportedMemory(std::shared_ptr<DeviceFloats> floats, uint64_t count, const cudaIpcMemHandle_t& handle)
      : floats_(std::move(floats)), count_(count), handle_(handle) {}

  std::span<const std::byte> handle() const override { return std::as_bytes(std::span(handle_.reserved)); }
  std::span<float> floats() const override { return {floats_->data(), count_}; }

 private:
  const std::shared_ptr<DeviceFloats> floats_;
  const uint64_t count_;
  const cudaIpcMemHandle_t handle_;
};

}  // namespace

Result<std::shared_ptr<SharedDeviceMemory>> shareDeviceMemory(int device, uint64_t bytes) {
  PSD_ASSIGN_OR_RETURN(auto floats, DeviceFloats::allocate(device, inSharedUnits(bytes) / sizeof(float)));
  // Zeroed on the default stream, for which other streams do not wait.
  PSD_RETURN_IF_ERROR(cudaStatus(device, "cudaStreamSynchronize", cudaStreamSynchronize(nullptr)));
  cudaIpcMemHandle_t handle;
  const Status exported =
      cudaStatus(device, "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, floats->data()));
  if (!exported.ok()) {
    cudaGetLastError();  // clears the error, which the next kernel launch would report
    return exported.error();
  }
  return std::shared_ptr<SharedDeviceMemory>(
      std::make_shared<ExportedMemory>(std::move(floats), bytes / sizeof(float), handle));
}

void CudaStorage::take(Lane& anyLane, std::span<const float> onDevice, StageDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const uint64_t count = onDevice.size();
  std::shared_ptr<float> copy, found;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(copy, arena_->copies->acquire(count + 1));
    PSD_ASSIGN_OR_RETURN(found, lane.outgoing(1));
    auto* const nonFinite = reinterpret_cast<uint32_t*>(copy.get() + count);
    PSD_RETURN_IF_ERROR(cudaStatus(arena_->device, "cudaMemsetAsync",
                                   cudaMemsetAsync(nonFinite, 0, sizeof *nonFinite, lane.stream())));
    PSD_RETURN_IF_ERROR(
        cudaStatus(arena_->device, "copy kernel",
                   copyCheckedOnDevice(copy.get(), onDevice.data(), count, nonFinite, lane.stream())));
    return cudaStatus(
        arena_->device, "cudaMemcpyAsync",
        cudaMemcpyAsync(found.get(), nonFinite, sizeof *nonFinite, cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), {}, [copy, count, found, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    uint32_t nonFinite = 0;
    std::memcpy(&nonFinite, found.get(), sizeof nonFinite);
    if (nonFinite != 0) return done(Error{ErrorCode::nonFinite, "holds NaN or infinity"});
    done(StagedGradient{{copy.get(), count}, copy});
  });
}

void CudaStorage::fetch(Lane& lane, std::span<const float> onDevice, ReadDone done) {
  copyOut(lane, onDevice.data(), onDevice.size(), std::move(done));
}

void CudaStorage::readTo(Lane& anyLane, uint64_t offset, std::span<float> onDevice, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    return cudaStatus(arena_->device, "cudaMemcpyAsync",
                      cudaMemcpyAsync(onDevice.data(), weights_ + offset, onDevice.size_bytes(),
                                      cudaMemcpyDeviceToDevice, lane.stream()));
  };
  lane.complete(queue(), {}, std::move(done));
}

void CudaStorage::put(Lane& anyLane, std::span<const float> values, std::span<float> onDevice, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    // Copied directly: the values are normally in pinned memory, into which they were read.
    return lane.queueCopy(onDevice.data(), values.data(), values.size_bytes());
  };
  lane.complete(queue(), {}, std::move(done));
}

Status CudaStorage::stepInPlace(CudaLane& lane, uint64_t offset, const Gradient& gradient,
                                const GradientChange& change, const UpdateScalars& update) {
  if (!change.pulled.empty()) return {ErrorCode::internal, "compensation of a gradient in device memory"};
  const DeviceSlice slice{offset,
                          gradient.size(),
                          weights_,
                          gradient.values().data(),
                          {},
                          slots_,
                          onDevice(lane, change, offset)};
  return cudaStatus(arena_->device, "optimizer kernel",
                    applyOnDevice(optimizer_, update, slice, lane.stream()));
}

}  // namespace psd
