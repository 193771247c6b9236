#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>

#include "common/types/host_device.h"

namespace psd {

/// Squares of a row are summed in kSquareLanes partial sums, one per every kSquareLanes-th element, which
/// addSquareLanes() combines: the same result for every instruction set and device.
inline constexpr uint32_t kSquareLanes = 16;

/// Sets sums[0] to Σ sums.
PSD_HOST_DEVICE void addSquareLanes(float* sums) {
  for (uint32_t half = kSquareLanes / 2; half > 0; half /= 2) {
    for (uint32_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
}

}  // namespace psd
