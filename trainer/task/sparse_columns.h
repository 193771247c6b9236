#pragma once

#include <string_view>

namespace psd {

/// Columns of examples with few of many features: the ids of the features, i64, their values, f32, both with
/// the same number for each example, and the label, i64, 0 or 1. An id whose value is 0 is no feature.
inline constexpr std::string_view kSparseIds = "ids", kSparseValues = "values", kSparseLabel = "label";

}  // namespace psd
