#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <span>

namespace psd {

/// Σ v², added up in double: finite for every gradient.
double squaredNorm(std::span<const float> values);

}  // namespace psd
