#include "common/text/quantity.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace psd {
namespace {

constexpr double kSecondsMost = 1e15;  // larger values are not durations and do not fit an integer

/// One decimal if it is among the first three digits.
std::string threeDigits(double value) {
  return value < 99.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string bytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); unit++) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string durationText(double seconds) {
  const double known = seconds > 0 ? std::min(seconds, kSecondsMost) : 0;  // NaN becomes 0
  if (known == 0) return "0 s";
  if (known < 0.9995e-3) return fmt::format("{:.0f} µs", known * 1e6);
  if (known < 0.9995) return threeDigits(known * 1e3) + " ms";
  if (known < 59.95) return fmt::format("{:.1f} s", known);
  const auto whole = static_cast<uint64_t>(std::llround(known));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace psd
