#pragma once

#include <span>

namespace psd {

/// Σ v², added up in double: finite for every gradient.
double squaredNorm(std::span<const float> values);

}  // namespace psd
