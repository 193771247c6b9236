#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <cuda_runtime.h>

#include "common/codec/codec.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// Where a step works, all in the memory of the current device and 16-byte aligned: `count` weights, and as
/// many values of each slot, from element `offset` on; the gradient from its own beginning, `count` floats or
/// in `code`.
struct DeviceSlice {
  uint64_t offset, count;
  float* weights;
  const void* gradient;
  std::optional<DenseCode> code;
  std::span<float* const> slots;
};

/// Queues one step of the optimizer: one kernel that reads every value once and writes it once. Kernels of
/// other streams may be at the same weights (Hogwild!).
cudaError_t applyOnDevice(const Optimizer& optimizer, const UpdateScalars& update, const DeviceSlice& slice,
                          cudaStream_t stream);

/// Queues data[0 … n) = value on the default stream.
cudaError_t fillOnDevice(float* data, uint64_t n, float value);

/// Whether this program holds code for the current device.
cudaError_t checkDeviceCode();

}  // namespace psd
