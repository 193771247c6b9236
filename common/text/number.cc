#include "common/text/number.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>
#include <type_traits>

#include <locale.h>

namespace psd {
namespace {

/// Rounds a number out of its type's range: to 0 or near it, or to infinity. from_chars() reports the same
/// error for both.
template <class Number>
Number roundToRange(const std::string& text) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  if constexpr (std::is_same_v<Number, float>) return strtof_l(text.c_str(), nullptr, plain);
  return static_cast<Number>(strtod_l(text.c_str(), nullptr, plain));
}

}  // namespace

template <class Number>
std::optional<Number> toNumber(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return {};
  }
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return {};
  if constexpr (std::is_floating_point_v<Number>) {
    if (error == std::errc::result_out_of_range) value = roundToRange<Number>(std::string(text));
    if (!std::isfinite(value)) return {};
  } else if (error != std::errc()) {
    return {};
  }
  return value;
}

template std::optional<int> toNumber(std::string_view);
template std::optional<uint32_t> toNumber(std::string_view);
template std::optional<int64_t> toNumber(std::string_view);
template std::optional<uint64_t> toNumber(std::string_view);
template std::optional<float> toNumber(std::string_view);
template std::optional<double> toNumber(std::string_view);

}  // namespace psd
