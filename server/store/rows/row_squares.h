#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>

#include "common/types/host_device.h"

namespace psd {

/// Squares of a row are added up as so many sums, of every kSquareLanes-th element each, and these by
/// addSquareLanes(): the same whatever the instruction set, and on every device.
inline constexpr uint32_t kSquareLanes = 16;

/// Leaves Σ sums in sums[0].
PSD_HOST_DEVICE void addSquareLanes(float* sums) {
  for (uint32_t half = kSquareLanes / 2; half > 0; half /= 2) {
    for (uint32_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
}

}  // namespace psd
