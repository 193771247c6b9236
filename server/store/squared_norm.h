#pragma once

#include <span>

namespace psd {

/// Σ v², accumulated in double: finite for every finite gradient.
double squaredNorm(std::span<const float> values);

}  // namespace psd
