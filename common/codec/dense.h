#pragma once

// Plain C++ without third-party headers: .cu files include this.

#include <cstdint>

#include "common/codec/float16.h"
#include "common/codec/four_bit_values.h"

namespace psd {

/// Number of values that share a scale or a pair of means.
inline constexpr uint32_t kCodecBlock = 1024;
/// Number of four-bit values that share a scale.
inline constexpr uint32_t kFourBitBlock = 256;

/// The layout of a dense encoding, for a device that decodes while it applies: the codec, and the byte offset
/// of the values; scales or means come first.
struct DenseCode {
  enum class Kind : uint8_t { fp16, bf16, int8, int4, e3m0, onebit };
  Kind kind;
  uint64_t valuesAt = 0;
};

PSD_HOST_DEVICE uint32_t fourBitsAt(const unsigned char* values, uint64_t i) {
  return values[i / 2] >> (i % 2 * 4) & 15u;
}

/// Decodes value `i` of checked bytes.
PSD_HOST_DEVICE float denseValue(DenseCode code, const unsigned char* bytes, uint64_t i) {
  const unsigned char* const values = bytes + code.valuesAt;
  const float* const scales = reinterpret_cast<const float*>(bytes);
  switch (code.kind) {
    case DenseCode::Kind::fp16: return fromHalf(reinterpret_cast<const uint16_t*>(values)[i]);
    case DenseCode::Kind::bf16: return fromBfloat16(reinterpret_cast<const uint16_t*>(values)[i]);
    case DenseCode::Kind::int8:
      return scales[i / kCodecBlock] * static_cast<float>(reinterpret_cast<const int8_t*>(values)[i]);
    case DenseCode::Kind::int4: return scales[i / kFourBitBlock] * fromInt4(fourBitsAt(values, i));
    case DenseCode::Kind::e3m0: return scales[i / kFourBitBlock] * fromE3m0(fourBitsAt(values, i));
    case DenseCode::Kind::onebit: break;
  }
  const uint32_t negative = reinterpret_cast<const uint32_t*>(values)[i / 32] >> (i % 32) & 1u;
  return scales[i / kCodecBlock * 2 + negative];
}

}  // namespace psd
