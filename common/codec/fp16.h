#pragma once

#include "common/codec/bytes.h"
#include "common/codec/codec.h"

namespace psd {

/// count × IEEE 754 binary16, rounded to nearest even. Immutable.
class Fp16 final : public Codec {
 public:
  static constexpr std::string_view kName = "fp16",
                                    kSummary = "IEEE half precision, 2 bytes per value, up to ±65504";
  explicit Fp16(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  bool suitsParameters() const override { return true; }
  uint64_t encodedBytes(uint64_t count) const override { return count * sizeof(uint16_t); }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    auto* const to = reinterpret_cast<uint16_t*>(out);
    vectorised([=]() PSD_VECTORISED {
      for (size_t i = 0; i < values.size(); ++i) to[i] = toHalf(values[i]);
    });
    return anyWithExponent(to, values.size(), kExponent) ? beyondRange(kName, "65504") : Status();
  }
  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    return anyWithExponent(arrayAt<uint16_t>(bytes, 0), count, kExponent) ? nonFiniteValue(kName) : Status();
  }
  void decode(Bytes bytes, uint64_t, uint64_t begin, std::span<float> out) const override {
    const uint16_t* const from = arrayAt<uint16_t>(bytes, 0) + begin;
    vectorised([=]() PSD_VECTORISED {
      for (size_t i = 0; i < out.size(); ++i) out[i] = fromHalf(from[i]);
    });
  }
  std::optional<DenseCode> denseCode(uint64_t) const override { return DenseCode{DenseCode::Kind::fp16}; }

 private:
  static constexpr uint16_t kExponent = 0x7c00;
};

}  // namespace psd
