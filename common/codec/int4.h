#pragma once

#include "common/codec/four_bit.h"
#include "common/codec/four_bit_values.h"

namespace psd {

struct Int4Format {
  static constexpr std::string_view kName = "int4", kSummary = "4 bits per value, one scale per 256 values";
  static constexpr float kLargest = 7;
  static constexpr DenseCode::Kind kKind = DenseCode::Kind::int4;
  PSD_VECTORISED static uint8_t to(float value) { return toInt4(value); }
  PSD_VECTORISED static float from(uint32_t nibble) { return fromInt4(nibble); }
};

/// Integer multiples, from -7 to 7, of a scale.
using Int4 = FourBit<Int4Format>;

}  // namespace psd
