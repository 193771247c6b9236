#pragma once

#include <span>
#include <string>

#include "common/types/model_spec.h"

namespace psd {

/// Names the first value of a flat array that is NaN or infinite, as "fc1.weight holds nan at element 17 of
/// 1179648"; empty if all are finite.
std::string describeNonFinite(const ModelSpec& model, std::span<const float> flat);

}  // namespace psd
