#include "common/cli/setting.h"

#include <string_view>

#include <fmt/format.h>

#include "common/text/number.h"
#include "common/text/text.h"

namespace psd {
namespace {

Error invalid(const Setting& setting, const std::string& expected) {
  return {ErrorCode::invalidArgument,
          setting.source + ": '" + printable(setting.text) + "' is not " + expected};
}

}  // namespace

Result<uint64_t> parseInteger(const Setting& setting, uint64_t min, uint64_t max) {
  const auto value = toNumber<uint64_t>(setting.text);
  if (!value || *value < min || *value > max) {
    return invalid(setting, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return *value;
}

Result<uint64_t> parseBytes(const Setting& setting, uint64_t min, uint64_t max) {
  const std::string_view units = "KMG";
  const size_t unit = setting.text.empty() ? std::string_view::npos : units.find(setting.text.back());
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  const Setting digits{setting.source, setting.text.substr(0, setting.text.size() - (shift > 0 ? 1 : 0))};
  const auto count = parseInteger(digits, 0, max >> shift);
  if (!count.ok() || *count << shift < min) {
    return invalid(setting, "a number of bytes from " + std::to_string(min) + " to " + std::to_string(max) +
                                ", optionally with K, M or G");
  }
  return *count << shift;
}

Result<double> parseNumber(const Setting& setting, double min, double max) {
  const auto value = toNumber<double>(setting.text);
  if (value && *value >= min && *value <= max) return *value;
  return invalid(setting, fmt::format("a number from {} to {}", min, max));
}

Result<double> parseSeconds(const Setting& setting, double max, Zero zero) {
  const auto value = toNumber<double>(setting.text);
  if (!value || (zero == Zero::allowed ? *value < 0 : *value <= 0) || *value > max) {
    return invalid(setting, std::string("a number of seconds ") + (zero == Zero::allowed ? "from" : "above") +
                                " 0 and up to " + std::to_string(static_cast<uint64_t>(max)));
  }
  return *value;
}

}  // namespace psd
