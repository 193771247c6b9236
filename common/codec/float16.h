#pragma once

// Plain C++ without third-party headers: .cu files include this.

#include <cstdint>

#include "common/types/host_device.h"

namespace psd {

PSD_HOST_DEVICE uint32_t bitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
PSD_HOST_DEVICE float floatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// The bits of a magnitude, which sort like the magnitudes themselves.
PSD_HOST_DEVICE uint32_t magnitudeBits(float value) { return bitsOf(value) & 0x7fffffffu; }

/// IEEE 754 binary16, rounded to nearest even. Infinity from 65520 on, and for NaN. Branch-free, so that
/// loops vectorise.
PSD_HOST_DEVICE uint16_t toHalf(float value) {
  const uint32_t bits = bitsOf(value), magnitude = bits & 0x7fffffffu;
  // Normal halves: the exponent's bias drops from 127 to 15, and 13 bits of the fraction are rounded off.
  const uint32_t rebiased = magnitude - (112u << 23);
  uint32_t half = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  half = half > 0x7c00u ? 0x7c00u : half;
  // Subnormal halves are multiples of 2^-24, the unit in the last place of the float 0.5: adding 0.5 rounds.
  const uint32_t subnormal = bitsOf(floatOf(magnitude) + 0.5f) - bitsOf(0.5f);
  half = magnitude < (113u << 23) ? subnormal : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

/// The value of a finite half; exact. No operand is a subnormal float, which is a hundred times slower on
/// some processors.
PSD_HOST_DEVICE float fromHalf(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu, fraction = magnitude << 13;
  const float subnormal = floatOf(fraction + (113u << 23)) - floatOf(113u << 23);  // multiples of 2^-24
  const float value = magnitude < 0x400u ? subnormal : floatOf(fraction + (112u << 23));
  return floatOf(bitsOf(value) | (half & 0x8000u) << 16);
}

/// The upper half of a float's bits, rounded to nearest even; overflows to infinity.
PSD_HOST_DEVICE uint16_t toBfloat16(float value) {
  const uint32_t bits = bitsOf(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

PSD_HOST_DEVICE float fromBfloat16(uint16_t value) { return floatOf(static_cast<uint32_t>(value) << 16); }

}  // namespace psd
