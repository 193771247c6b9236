#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/codec/dense.h"
#include "common/codec/vectorised.h"
#include "common/status/status.h"

// Shared helpers of the codecs.

namespace psd {

/// The array of T at byte `at`, which is aligned for T.
template <class T>
const T* arrayAt(std::span<const std::byte> bytes, uint64_t at) {
  return reinterpret_cast<const T*>(bytes.data() + at);
}

inline uint64_t blocksOf(uint64_t count) { return (count + kCodecBlock - 1) / kCodecBlock; }

inline Status badSize(std::string_view codec, uint64_t count, uint64_t right, uint64_t bytes) {
  return {ErrorCode::badSlice, std::string(codec) + ": " + std::to_string(count) + " values take " +
                                   std::to_string(right) + " bytes, not " + std::to_string(bytes)};
}

inline Status badBytes(std::string_view codec, std::string_view why) {
  return {ErrorCode::badSlice, std::string(codec) + ": " + std::string(why)};
}

inline Status nonFiniteValue(std::string_view codec) {
  return {ErrorCode::nonFinite, std::string(codec) + ": a value is NaN or infinite"};
}

/// Fails unless each scale is in [0, most].
inline Status checkScales(std::string_view codec, std::span<const float> scales, float most) {
  for (const float scale : scales) {
    if (!(scale >= 0 && scale <= most)) {
      return {ErrorCode::nonFinite, std::string(codec) + ": a scale is negative, too large or NaN"};
    }
  }
  return {};
}

inline Status beyondRange(std::string_view codec, std::string_view largest) {
  return {ErrorCode::nonFinite,
          std::string(codec) + ": a value is beyond +-" + std::string(largest) + ", its largest"};
}

/// Whether any 16-bit float has all bits of `exponent` set, which means infinite or NaN.
inline bool anyWithExponent(const uint16_t* values, uint64_t count, uint16_t exponent) {
  bool any = false;
  vectorised([=, &any]() PSD_VECTORISED {
    uint16_t found = 0;
    for (uint64_t i = 0; i < count; ++i) found |= (values[i] & exponent) == exponent ? 1 : 0;
    any = found != 0;
  });
  return any;
}

}  // namespace psd
