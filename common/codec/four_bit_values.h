#pragma once

#include <cstdint>

#include "common/codec/float16.h"

namespace psd {

/// An integer from -7 to 7 in four-bit two's complement, rounded to nearest even and clamped.
PSD_HOST_DEVICE uint8_t toInt4(float value) {
  // Adding 1.5 × 2^23 rounds a small float to the nearest integer, which is then in the lowest bits.
  constexpr float kRounder = 12582912.f;
  const auto whole = static_cast<int32_t>(bitsOf(value + kRounder) - bitsOf(kRounder));
  return static_cast<uint8_t>((whole > 7 ? 7 : whole < -7 ? -7 : whole) & 15);
}

PSD_HOST_DEVICE float fromInt4(uint32_t nibble) {
  return static_cast<float>(static_cast<int32_t>(nibble ^ 8u) - 8);
}

/// E3M0, a float with a sign and three exponent bits: ±2^(e - 7) for e from 1 to 7, zero for e = 0. Rounded
/// to nearest, ties to the larger magnitude, clamped to ±1; -0 is never produced. Branch-free, so that loops
/// vectorise.
PSD_HOST_DEVICE uint8_t toE3m0(float value) {
  constexpr uint32_t kHalfFraction = 1u << 22, kSmallestHalved = 120u << 23;
  const uint32_t magnitude = magnitudeBits(value);
  const uint32_t exponent = (magnitude + kHalfFraction) >> 23;
  uint32_t code = exponent < 121 ? 1 : exponent - 120;
  code = code > 7 ? 7 : code;
  code |= bitsOf(value) >> 28 & 8u;
  return static_cast<uint8_t>(magnitude < kSmallestHalved ? 0 : code);
}

PSD_HOST_DEVICE float fromE3m0(uint32_t nibble) {
  const uint32_t exponent = nibble & 7u;
  return floatOf((exponent == 0 ? 0 : (exponent + 120) << 23) | (nibble & 8u) << 28);
}

}  // namespace psd
