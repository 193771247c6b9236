#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "common/types/host_device.h"

namespace psd {

/// What becomes of a gradient on its way to the optimizer, in the order of these fields. A view of memory
/// that the caller keeps; a value type.
struct GradientChange {
  float scale = 1;                                       ///< g ← scale · g
  float limit = std::numeric_limits<float>::infinity();  ///< g cut to −limit … limit
  /// DC-ASGD (Zheng et al. 2017), g ← g + λ · g² · (w − pulled): the weights that the gradient was computed
  /// from, in host memory, one for each value of the gradient. Empty: nothing of it. A value that this would
  /// make NaN or infinite stays as it is.
  std::span<const float> pulled;
  float lambda = 0;
  /// λ / √(MS + 1e-7) in place of λ, where MS ← 0.95 · MS + 0.05 · g², at most FLT_MAX, per weight, is the
  /// storage's.
  bool adaptive = false;

  bool none() const {
    return scale == 1 && limit == std::numeric_limits<float>::infinity() && pulled.empty();
  }
};

/// What a GradientChange makes of one element of a gradient, on host and device alike.
struct ElementChange {
  float scale, limit, lambda;

  PSD_HOST_DEVICE float clipped(float g) const {
    g *= scale;
    return g > limit ? limit : g < -limit ? -limit : g;
  }
  PSD_HOST_DEVICE float compensated(float g, float w, float pulled) const {
    return finiteOr(g, g + lambda * g * g * (w - pulled));
  }
  PSD_HOST_DEVICE float compensatedAdaptively(float g, float w, float pulled, float& meanSquare) const {
    const float next = 0.95f * meanSquare + 0.05f * g * g;
    meanSquare = next < FLT_MAX ? next : FLT_MAX;
    // By `next`: what is chosen above would make compilers branch rather than vectorise.
    return finiteOr(g, g + lambda / sqrtf(next + 1e-7f) * g * g * (w - pulled));
  }

 private:
  /// `value`, or `g` where that is NaN or infinite: g² and w − pulled overflow before their product need.
  PSD_HOST_DEVICE static float finiteOr(float g, float value) { return fabsf(value) <= FLT_MAX ? value : g; }
};

inline ElementChange elementChange(const GradientChange& change) {
  return {change.scale, change.limit, change.lambda};
}

}  // namespace psd
