#pragma once

#include <optional>
#include <string_view>

namespace psd {

/// The number that the whole of a text is, in decimal digits, with or without a sign. A floating-point number
/// is rounded to the nearest one of its type, down to 0. Nothing where the text is no number, or one that the
/// type does not hold; infinity and NaN are none. Whatever the locale. For int, uint32_t, int64_t, uint64_t,
/// float and double.
template <class Number>
std::optional<Number> toNumber(std::string_view text);

}  // namespace psd
