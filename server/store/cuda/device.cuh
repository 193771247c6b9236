#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <cuda_runtime.h>

#include "common/status/status.h"

namespace psd {

/// "cuda:0".
std::string cudaDeviceName(int device);

/// Ok, or ErrorCode::internal like "cuda:0: cudaMemcpyAsync: out of memory (cudaErrorMemoryAllocation)". A
/// pure function: allowed in the driver's callbacks.
Status cudaStatus(int device, std::string_view call, cudaError_t error);

/// Zeroed floats in a device's memory. The object is immutable; access to the memory is not synchronized.
/// Destruction waits for the device.
class DeviceFloats {
 public:
  /// ErrorCode::overloaded, naming the bytes, if the device is out of memory.
  static Result<std::shared_ptr<DeviceFloats>> allocate(int device, uint64_t count);
  ~DeviceFloats();
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  float* data() const { return data_; }

 private:
  DeviceFloats(int device, float* data) : device_(device), data_(data) {}

  const int device_;
  float* const data_;
};

}  // namespace psd
