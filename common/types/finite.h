#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace psd {

/// Whether no value is NaN or infinite. Stops at the first block that has one.
bool allFinite(std::span<const float> values);

/// Describes a value that is not finite: "fc1.weight holds nan at element 17 of 1179648".
std::string nonFiniteElement(std::string_view tensor, float value, uint64_t element, uint64_t count);
/// Describes a row that holds a value that is not finite: "item holds infinity in the row of id 7".
std::string nonFiniteRow(std::string_view table, float value, uint64_t id);

}  // namespace psd
