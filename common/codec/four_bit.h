#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"
#include "common/types/finite.h"

namespace psd {

/// Four-bit numbers times a scale shared by a block of 256 values:
///   float32 scale, one per block: the largest magnitude / `kLargest`, or 0 if that is not a normal float;
///   uint8 × ⌈count / 2⌉: value 2i in the lower four bits of byte i, value 2i + 1 in the upper ones, which
///   are 0 past the end. 8 is invalid in either format: it would be -8 or -0.
/// `Format` defines them: `kName`, `kSummary`, `kLargest` (its largest number), `kKind`, `to(float)` and
/// `from(uint32_t)`. Immutable.
template <class Format>
class FourBit final : public Codec {
 public:
  static constexpr std::string_view kName = Format::kName, kSummary = Format::kSummary;
  explicit FourBit(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  uint64_t encodedBytes(uint64_t count) const override { return bytesAt(count) + (count + 1) / 2; }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    auto* const scales = reinterpret_cast<float*>(out);
    auto* to = reinterpret_cast<uint8_t*>(out + bytesAt(values.size()));
    if (!allFinite(values)) return nonFiniteValue(kName);
    for (uint64_t begin = 0; begin < values.size(); begin += kFourBitBlock, to += kFourBitBlock / 2) {
      const uint64_t some = std::min<uint64_t>(kFourBitBlock, values.size() - begin);
      scales[begin / kFourBitBlock] = encodeBlock(values.subspan(begin, some), to);
    }
    return {};
  }

  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    PSD_RETURN_IF_ERROR(checkScales(kName, {arrayAt<float>(bytes, 0), scalesOf(count)}, kScaleMax));
    const uint8_t* const from = arrayAt<uint8_t>(bytes, bytesAt(count));
    bool any = false;
    vectorised([=, &any]() PSD_VECTORISED {
      uint8_t found = 0;
      for (uint64_t i = 0; i < (count + 1) / 2; ++i) {
        found |= (from[i] & 15) == 8 || from[i] >> 4 == 8 ? 1 : 0;
      }
      any = found != 0;
    });
    if (any) return badBytes(kName, "8 is not a value of this codec");
    if (count % 2 != 0 && from[count / 2] >> 4 != 0)
      return badBytes(kName, "bits past the last value are set");
    return {};
  }

  void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const override {
    const float* scale = arrayAt<float>(bytes, 0) + begin / kFourBitBlock;
    const uint8_t* from = arrayAt<uint8_t>(bytes, bytesAt(count)) + begin / 2;
    for (uint64_t at = 0; at < out.size(); at += kFourBitBlock, from += kFourBitBlock / 2, ++scale) {
      const std::span<float> block = out.subspan(at, std::min<uint64_t>(kFourBitBlock, out.size() - at));
      vectorised([=, scale = *scale]() PSD_VECTORISED {
        for (size_t i = 0; i < block.size() / 2; ++i) {
          block[2 * i] = scale * Format::from(from[i] & 15u);
          block[2 * i + 1] = scale * Format::from(from[i] >> 4);
        }
        if (block.size() % 2 != 0) block.back() = scale * Format::from(from[block.size() / 2] & 15u);
      });
    }
  }
  std::optional<DenseCode> denseCode(uint64_t count) const override {
    return DenseCode{Format::kKind, bytesAt(count)};
  }

 private:
  // This quotient is exact for either format (7 divides 2^24 - 1, and 1 any number): so no block has a larger
  // scale, and kLargest times a scale never exceeds the largest float.
  static constexpr float kScaleMax = std::numeric_limits<float>::max() / Format::kLargest;
  static uint64_t scalesOf(uint64_t count) { return (count + kFourBitBlock - 1) / kFourBitBlock; }
  static uint64_t bytesAt(uint64_t count) { return scalesOf(count) * sizeof(float); }

  /// Encodes a block to `to`. Returns its scale.
  static float encodeBlock(std::span<const float> values, uint8_t* to) {
    float used = 0;
    vectorised([=, &used]() PSD_VECTORISED {
      uint32_t largest = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t bits = magnitudeBits(values[i]);
        largest = bits > largest ? bits : largest;
      }
      float scale = floatOf(largest) / Format::kLargest;
      if (scale < std::numeric_limits<float>::min()) scale = 0;
      const float inverse = scale > 0 ? 1 / scale : 0;
      used = scale;
      std::array<uint8_t, kFourBitBlock> codes{};
      for (size_t i = 0; i < values.size(); ++i) codes[i] = Format::to(values[i] * inverse);
      for (size_t i = 0; i < (values.size() + 1) / 2; ++i) {
        to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
      }
    });
    return used;
  }
};

}  // namespace psd
