#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "common/types/host_device.h"

namespace psd {

/// Transformations of a gradient before the optimizer step, applied in the order of the fields. A view; does
/// not own the memory. A value type.
struct GradientChange {
  float scale = 1;                                       ///< g ← scale · g
  float limit = std::numeric_limits<float>::infinity();  ///< g clamped to [−limit, limit]
  /// Delay compensation (DC-ASGD, Zheng et al. 2017): g ← g + λ · g² · (w − pulled), with the weights that
  /// the gradient was computed from, in host memory, one per gradient value. Empty: no compensation. A value
  /// that would become NaN or infinite is left unchanged.
  std::span<const float> pulled;
  float lambda = 0;
  /// Uses λ / √(MS + 1e-7) instead of λ, with the per-weight mean square MS ← 0.95 · MS + 0.05 · g², capped
  /// at FLT_MAX, which the storage keeps.
  bool adaptive = false;

  bool none() const {
    return scale == 1 && limit == std::numeric_limits<float>::infinity() && pulled.empty();
  }
};

/// Applies a GradientChange to one element, on host and device alike.
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
    // Uses `next` rather than the selected value, which would make compilers branch instead of vectorize.
    return finiteOr(g, g + lambda / sqrtf(next + 1e-7f) * g * g * (w - pulled));
  }

 private:
  /// Returns `value`, or `g` if `value` is NaN or infinite: g² and w − pulled can overflow even if their
  /// product with λ would not.
  PSD_HOST_DEVICE static float finiteOr(float g, float value) { return fabsf(value) <= FLT_MAX ? value : g; }
};

inline ElementChange elementChange(const GradientChange& change) {
  return {change.scale, change.limit, change.lambda};
}

}  // namespace psd
