#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A text and its source, so that errors can name the flag or variable.
struct Setting {
  std::string source;  ///< "--rank" or "RANK"
  std::string text;
};

/// An integer from min to max; the error names the source, quotes the text and states the range.
Result<uint64_t> parseInteger(const Setting& setting, uint64_t min, uint64_t max);
/// A number from min to max, fractions allowed.
Result<double> parseNumber(const Setting& setting, double min, double max);
enum class Zero { refused, allowed };
/// A number of seconds, fractions allowed, at most `max`; above 0, or from 0 on if `zero` is allowed.
Result<double> parseSeconds(const Setting& setting, double max, Zero zero = Zero::refused);

/// A number of bytes from min to max, optionally with the suffix K, M or G (powers of 1024).
Result<uint64_t> parseBytes(const Setting& setting, uint64_t min, uint64_t max);

}  // namespace psd
