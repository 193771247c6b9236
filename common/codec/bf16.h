#pragma once

#include "common/codec/float16.h"
#include "common/codec/sixteen_bit.h"

namespace psd {

/// bfloat16: the upper halves of floats.
struct Bf16Format {
  static constexpr std::string_view kName = "bf16", kSummary = "bfloat16, 2 bytes per value, float32's range";
  static constexpr const char* kLargest = "3.39e38";
  static constexpr uint16_t kExponent = 0x7f80;
  static constexpr DenseCode::Kind kCode = DenseCode::Kind::bf16;
  static uint16_t from(float value) { return toBfloat16(value); }
  static float to(uint16_t value) { return fromBfloat16(value); }
};

using Bf16 = SixteenBit<Bf16Format>;

}  // namespace psd
