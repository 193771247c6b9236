#pragma once

#include <optional>
#include <string_view>

namespace psd {

/// Parses the whole text as a decimal number, with or without a sign. A floating-point number is rounded to
/// the nearest one of its type, down to 0. Empty if the text is not a number, or one out of the type's range;
/// infinity and NaN are not numbers. Independent of the locale. For int, uint32_t, int64_t, uint64_t, float
/// and double.
template <class Number>
std::optional<Number> toNumber(std::string_view text);

}  // namespace psd
