#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "common/text/number.h"

// Numbers in lines of text, parsed in place. Each function advances `at`, up to `end`, past what it reads; it
// may read, but does not use, kLinePadding bytes behind `end`.

namespace psd {

/// Bytes behind a line that these functions may read.
inline constexpr size_t kLinePadding = sizeof(uint64_t);

/// Up to eight decimal digits. A value type.
struct Digits {
  uint64_t value = 0;
  uint32_t count = 0;
};

/// Reads up to eight digits without a branch for each: lengths of numbers are hard to predict.
inline Digits readEightDigits(const char* at, const char* end) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kHighest = 0x8080808080808080;
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  const uint64_t offsets = word ^ 0x3030303030303030;  // from '0': a digit's is at most 9
  const uint64_t others = ((offsets + 0x7676767676767676) | offsets) & kHighest;
  const auto digits = others == 0 ? uint32_t{8} : static_cast<uint32_t>(std::countr_zero(others)) / 8;
  const auto count = static_cast<uint32_t>(std::min<ptrdiff_t>(digits, end - at));
  if (count == 0) return {};
  word <<= 64 - 8 * count;                         // zeros in front
  word = (word & 0x0f0f0f0f0f0f0f0f) * 2561 >> 8;  // pairs of digits, then four, then eight
  word = (word & 0x00ff00ff00ff00ff) * 6553601 >> 16;
  word = (word & 0x0000ffff0000ffff) * 42949672960001 >> 32;
  return {word, count};
}

/// 10^count, for at most 15.
inline uint64_t powerOfTen(uint32_t count) {
  constexpr std::array<uint64_t, 16> kPowers = [] {
    std::array<uint64_t, 16> powers{1};
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
    return powers;
  }();
  return kPowers[count];
}

/// Reads decimal digits; false if there are none or the number is not below 2^64.
inline bool readDigits(const char*& at, const char* end, uint64_t& value) {
  const Digits first = readEightDigits(at, end);
  at += first.count;
  value = first.value;
  if (first.count < 8) return first.count != 0;
  for (; at < end && *at >= '0' && *at <= '9'; ++at) {
    const auto digit = static_cast<uint64_t>(*at - '0');
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) return false;
    value = value * 10 + digit;
  }
  return true;
}

/// Reads a number of at most 15 digits without an exponent. The result is the nearest double, as a quotient
/// of two whole numbers that doubles hold. False, with `at` unchanged, for any other text.
inline bool readShortNumber(const char*& at, const char* end, double& value) {
  constexpr uint32_t kDigitsMost = 15;
  const char* c = at;
  const bool negative = c < end && *c == '-';
  if (c < end && (*c == '-' || *c == '+')) ++c;
  Digits digits = readEightDigits(c, end);
  c += digits.count;
  uint32_t fraction = 0;
  if (c < end && *c == '.') {
    ++c;
    for (Digits more{0, 8}; more.count == 8;) {
      more = readEightDigits(c, end);
      c += more.count;
      digits.count += more.count;
      fraction += more.count;
      if (digits.count > kDigitsMost) return false;
      digits.value = digits.value * powerOfTen(more.count) + more.value;
    }
  }
  if (digits.count == 0) return false;
  const double number = static_cast<double>(digits.value) / static_cast<double>(powerOfTen(fraction));
  value = negative ? -number : number;
  at = c;
  return true;
}

/// Reads a number up to a blank or the end of the line; false if the text is none, or not finite as a float.
/// The result is the float nearest to the double nearest to the text.
inline bool readFloat(const char*& at, const char* end, float& value) {
  const auto isBlank = [](char c) { return c == ' ' || c == '\t'; };
  double number = 0;
  const char* stop = at;
  if (!readShortNumber(stop, end, number) || (stop < end && !isBlank(*stop))) {
    while (stop < end && !isBlank(*stop)) ++stop;
    const auto slow = toNumber<double>(std::string_view(at, static_cast<size_t>(stop - at)));
    if (!slow) return false;
    number = *slow;
  }
  value = static_cast<float>(number);
  if (!std::isfinite(value)) return false;
  at = stop;
  return true;
}

}  // namespace psd
