#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <cuda_runtime.h>

#include "common/codec/codec.h"
#include "server/optimizer/optimizer.h"
#include "server/store/gradient_change.h"

namespace psd {

/// A GradientChange with its inputs in the memory of the current device: one pulled weight and one mean
/// square per gradient element; `pulled` is null without compensation, `meanSquare` unless it is adaptive.
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

/// Operands of a step, all in the memory of the current device and 16-byte aligned: `count` weights, and as
/// many values of each slot, from element `offset` on; the gradient, `count` floats or in `code`, from its
/// own start.
struct DeviceSlice {
  uint64_t offset, count;
  float* weights;
  const void* gradient;
  std::optional<DenseCode> code;
  std::span<float* const> slots;
  std::optional<DeviceChange> change = {};  ///< empty: unchanged gradients
};

/// Queues one optimizer step: a kernel for each run of hyperparameters, one if the push carries none, that
/// reads and writes every value once. A gradient in a code has one run. Kernels of other streams may access
/// the same weights (Hogwild!).
cudaError_t applyOnDevice(const Optimizer& optimizer, const UpdateScalars& update, const DeviceSlice& slice,
                          cudaStream_t stream);

/// Operands of a step whose gradient is zero except for `count` entries: their `values`, and in `places` the
/// distinct positions of their weights relative to `offset`, already checked.
struct DeviceEntries {
  uint64_t offset, count;
  float* weights;
  const uint32_t* places;
  const float* values;
};

/// Queues one step of an optimizer without slots that updates only the weights of `entries`: one kernel.
/// cudaErrorInvalidValue for other optimizers.
cudaError_t applyEntriesOnDevice(const Optimizer& optimizer, const UpdateScalars& update,
                                 const DeviceEntries& entries, cudaStream_t stream);

/// Queues parts[b] += a partial sum of Σ data², for each b below kSquareParts. The assignment of data to b is
/// fixed.
cudaError_t addSquaresOnDevice(const float* data, uint64_t n, double* parts, cudaStream_t stream);
inline constexpr uint32_t kSquareParts = 256;

/// Queues to = from, `n` floats, and *nonFinite = 1 if a copied value is NaN or infinite. Another process may
/// be writing `from`.
cudaError_t copyCheckedOnDevice(float* to, const float* from, uint64_t n, uint32_t* nonFinite,
                                cudaStream_t stream);

/// Queues data[0 … n) = value on the default stream.
cudaError_t fillOnDevice(float* data, uint64_t n, float value);

/// Checks that this program contains code for the current device.
cudaError_t checkDeviceCode();

}  // namespace psd
