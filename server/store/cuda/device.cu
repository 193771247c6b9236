#include "server/store/arena_plan.h"
#include "server/store/cuda/device.cuh"

namespace psd {

std::string cudaDeviceName(int device) { return "cuda:" + std::to_string(device); }

Status cudaStatus(int device, std::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {ErrorCode::internal, cudaDeviceName(device) + ": " + std::string(call) + ": " +
                                   cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")"};
}

Result<std::shared_ptr<DeviceFloats>> DeviceFloats::allocate(int device, uint64_t count) {
  PSD_RETURN_IF_ERROR(cudaStatus(device, "cudaSetDevice", cudaSetDevice(device)));
  const uint64_t bytes = (count > 0 ? count : 1) * sizeof(float);
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the next kernel launch would report
    if (error != cudaErrorMemoryAllocation) return cudaStatus(device, "cudaMalloc", error).error();
    return notEnoughMemory(cudaDeviceName(device), bytes, cudaGetErrorString(error));
  }
  std::shared_ptr<DeviceFloats> floats(new DeviceFloats(device, static_cast<float*>(data)));
  PSD_RETURN_IF_ERROR(cudaStatus(device, "cudaMemset", cudaMemset(data, 0, bytes)));
  return floats;
}

DeviceFloats::~DeviceFloats() {
  cudaSetDevice(device_);
  cudaFree(data_);
}

}  // namespace psd
