#pragma once

#include <span>

namespace psd {

/// Whether no value is NaN or infinite. Stops early at the first block that has one.
bool allFinite(std::span<const float> values);

}  // namespace psd
