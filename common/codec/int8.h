#pragma once

#include <algorithm>
#include <limits>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"
#include "common/types/finite.h"

namespace psd {

/// Integer multiples of a scale shared by a block of 1024 values:
///   float32 scale, one per block: the largest magnitude / 127, or 0 if that is not a normal float;
///   int8 × count, from -127 to 127; value = scale × int8. The last block may be shorter.
/// Immutable.
class Int8 final : public Codec {
 public:
  static constexpr std::string_view kName = "int8", kSummary = "1 byte per value, one scale per 1024 values";
  explicit Int8(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  bool suitsParameters() const override { return true; }
  uint64_t encodedBytes(uint64_t count) const override { return valuesAt(count) + count; }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    auto* const scales = reinterpret_cast<float*>(out);
    auto* const to = reinterpret_cast<int8_t*>(out + valuesAt(values.size()));
    for (uint64_t block = 0; block < blocksOf(values.size()); ++block) {
      const uint64_t begin = block * kCodecBlock;
      if (!allFinite(values.subspan(begin, std::min<uint64_t>(kCodecBlock, values.size() - begin)))) {
        return nonFiniteValue(kName);
      }
      scales[block] = encodeBlock(
          values.subspan(begin, std::min<uint64_t>(kCodecBlock, values.size() - begin)), to + begin);
    }
    return {};
  }

  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    PSD_RETURN_IF_ERROR(checkScales(kName, {arrayAt<float>(bytes, 0), blocksOf(count)}, kScaleMax));
    const int8_t* const values = arrayAt<int8_t>(bytes, valuesAt(count));
    bool any = false;
    vectorised([=, &any]() PSD_VECTORISED {
      uint8_t found = 0;
      for (uint64_t i = 0; i < count; ++i) found |= values[i] == -128 ? 1 : 0;
      any = found != 0;
    });
    return !any ? Status() : badBytes(kName, "-128 is not a value of this codec");
  }

  void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const override {
    const float* const scales = arrayAt<float>(bytes, 0);
    const int8_t* const values = arrayAt<int8_t>(bytes, valuesAt(count)) + begin;
    for (uint64_t at = 0; at < out.size(); at += kCodecBlock) {
      const float scale = scales[(begin + at) / kCodecBlock];
      const uint64_t end = std::min<uint64_t>(at + kCodecBlock, out.size());
      vectorised([=]() PSD_VECTORISED {
        for (uint64_t i = at; i < end; ++i) out[i] = scale * static_cast<float>(values[i]);
      });
    }
  }
  std::optional<DenseCode> denseCode(uint64_t count) const override {
    return DenseCode{DenseCode::Kind::int8, valuesAt(count)};
  }

 private:
  static constexpr float kScaleMax = 0x1.0204p121f;  // times 127 it is still finite
  static uint64_t valuesAt(uint64_t count) { return blocksOf(count) * sizeof(float); }

  /// Encodes a block to `to`. Returns its scale.
  static float encodeBlock(std::span<const float> values, int8_t* to) {
    // Adding 1.5 × 2^23 rounds a small float to the nearest integer, which is then in the lowest bits.
    constexpr float kRounder = 12582912.f;
    float used = 0;
    vectorised([=, &used]() PSD_VECTORISED {
      uint32_t largest = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t bits = magnitudeBits(values[i]);
        largest = bits > largest ? bits : largest;
      }
      float scale = std::min(floatOf(largest) / 127, kScaleMax);
      if (scale < std::numeric_limits<float>::min()) scale = 0;
      const float inverse = scale > 0 ? 1 / scale : 0;
      used = scale;
      for (size_t i = 0; i < values.size(); ++i) {
        const auto whole = static_cast<int32_t>(bitsOf(values[i] * inverse + kRounder) - bitsOf(kRounder));
        to[i] = static_cast<int8_t>(whole > 127 ? 127 : whole < -127 ? -127 : whole);
      }
    });
    return used;
  }
};

}  // namespace psd
