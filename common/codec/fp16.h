#pragma once

#include "common/codec/float16.h"
#include "common/codec/sixteen_bit.h"

namespace psd {

/// IEEE 754 binary16.
struct Fp16Format {
  static constexpr std::string_view kName = "fp16",
                                    kSummary = "IEEE half precision, 2 bytes per value, up to ±65504";
  static constexpr const char* kLargest = "65504";
  static constexpr uint16_t kExponent = 0x7c00;
  static constexpr DenseCode::Kind kCode = DenseCode::Kind::fp16;
  static uint16_t from(float value) { return toHalf(value); }
  static float to(uint16_t value) { return fromHalf(value); }
};

using Fp16 = SixteenBit<Fp16Format>;

}  // namespace psd
