#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "common/types/host_device.h"

namespace psd {

/// What becomes of a gradient on its way to the optimizer, in the order of these fields. A view of memory
/// that somebody else keeps; a value type.
struct GradientChange {
  float scale = 1;                                       ///< g ← scale · g
  float limit = std::numeric_limits<float>::infinity();  ///< g cut to −limit … limit
  /// DC-ASGD (Zheng et al. 2017), g ← g + λ · g² · (w − pulled): the weights that the gradient was computed
  /// from, in host memory, one for each value of the gradient. Empty: nothing of it.
  std::span<const float> pulled;
  float lambda = 0;
  /// λ / √(MS + 1e-7) in place of λ, where MS ← 0.95 · MS + 0.05 · g², per weight, is the storage's.
  bool adaptive = false;

  bool none() const {
    return scale == 1 && limit == std::numeric_limits<float>::infinity() && pulled.empty();
  }
};

/// The same for one element, on host and device alike.
struct ElementChange {
  float scale, limit, lambda;

  PSD_HOST_DEVICE float clipped(float g) const {
    g *= scale;
    return g > limit ? limit : g < -limit ? -limit : g;
  }
  PSD_HOST_DEVICE float compensated(float g, float w, float pulled) const {
    return g + lambda * g * g * (w - pulled);
  }
  PSD_HOST_DEVICE float compensatedAdaptively(float g, float w, float pulled, float& meanSquare) const {
    meanSquare = 0.95f * meanSquare + 0.05f * g * g;
    return g + lambda / sqrtf(meanSquare + 1e-7f) * g * g * (w - pulled);
  }
};

inline ElementChange elementChange(const GradientChange& change) {
  return {change.scale, change.limit, change.lambda};
}

}  // namespace psd
