#pragma once

#include <cfloat>
#include <vector>

namespace psd::testing {

/// Finite float32 values of both signs from the entire range: zero, denormals, the largest.
inline std::vector<float> finiteValues() {
  std::vector<float> values{0.f, -0.f};
  for (const float magnitude : {FLT_TRUE_MIN, 1e-40f, FLT_MIN, 1e-30f, 1e-20f, 1e-10f, 1e-3f, 1.f, 7.5f,
                                1e10f, 1.8e19f, 1.9e19f, 1e20f, 1e25f, 1e30f, 1.7e38f, 3e38f, FLT_MAX}) {
    values.push_back(magnitude);
    values.push_back(-magnitude);
  }
  return values;
}

}  // namespace psd::testing
