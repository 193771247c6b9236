#pragma once

#include "common/codec/four_bit.h"
#include "common/codec/four_bit_values.h"

namespace psd {

struct E3m0Format {
  static constexpr std::string_view kName = "e3m0",
                                    kSummary = "4 bits per value, powers of two, one scale per 256 values";
  static constexpr float kLargest = 1;
  static constexpr DenseCode::Kind kKind = DenseCode::Kind::e3m0;
  PSD_VECTORISED static uint8_t to(float value) { return toE3m0(value); }
  PSD_VECTORISED static float from(uint32_t nibble) { return fromE3m0(nibble); }
};

/// Powers of two from 2^-6 to 1, with a sign, and zero, times a scale: the four-bit floats of Streaming
/// DiLoCo (Douillard et al. 2025).
using E3m0 = FourBit<E3m0Format>;

}  // namespace psd
