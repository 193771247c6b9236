#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <cuda_runtime.h>

#include "common/codec/codec.h"
#include "server/optimizer/optimizer.h"
#include "server/store/gradient_change.h"

namespace psd {

/// A GradientChange with what it needs in the memory of the current device: one weight that was pulled and
/// one mean square for each of the gradient's elements, null where there is no compensation, or none that is
/// adaptive.
struct DeviceChange {
  ElementChange element;
  const float* pulled;
  float* meanSquare;

  PSD_HOST_DEVICE float operator()(float g, float w, uint64_t i) const {
    g = element.clipped(g);
    if (meanSquare != nullptr) return element.compensatedAdaptively(g, w, pulled[i], meanSquare[i]);
    return pulled != nullptr ? element.compensated(g, w, pulled[i]) : g;
  }
};

/// Where a step works, all in the memory of the current device and 16-byte aligned: `count` weights, and as
/// many values of each slot, from element `offset` on; the gradient from its own beginning, `count` floats or
/// in `code`.
struct DeviceSlice {
  uint64_t offset, count;
  float* weights;
  const void* gradient;
  std::optional<DenseCode> code;
  std::span<float* const> slots;
  std::optional<DeviceChange> change = {};  ///< none: gradients as they came
};

/// Queues one step of the optimizer: one kernel that reads every value once and writes it once. Kernels of
/// other streams may work on these weights (Hogwild!).
cudaError_t applyOnDevice(const Optimizer& optimizer, const UpdateScalars& update, const DeviceSlice& slice,
                          cudaStream_t stream);

/// Where a step works whose gradient is zero but for `count` entries: their `values`, and in `places` the
/// places of their weights from `offset` on, each once. Whoever made the entries has checked them.
struct DeviceEntries {
  uint64_t offset, count;
  float* weights;
  const uint32_t* places;
  const float* values;
};

/// Queues one step of an optimizer without slots that touches the weights of `entries` alone: one kernel.
/// For any other optimizer cudaErrorInvalidValue.
cudaError_t applyEntriesOnDevice(const Optimizer& optimizer, const UpdateScalars& update,
                                 const DeviceEntries& entries, cudaStream_t stream);

/// Queues parts[b] += a part of Σ data², for each b below kSquareParts. Which part of the data is b's never
/// varies.
cudaError_t addSquaresOnDevice(const float* data, uint64_t n, double* parts, cudaStream_t stream);
inline constexpr uint32_t kSquareParts = 256;

/// Queues to = from, `n` floats, and *nonFinite = 1 where one of the copies is NaN or infinite. Somebody else
/// may be writing `from`.
cudaError_t copyCheckedOnDevice(float* to, const float* from, uint64_t n, uint32_t* nonFinite,
                                cudaStream_t stream);

/// Queues data[0 … n) = value on the default stream.
cudaError_t fillOnDevice(float* data, uint64_t n, float value);

/// Whether this program holds code for the current device.
cudaError_t checkDeviceCode();

}  // namespace psd
