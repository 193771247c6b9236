#pragma once

#include "common/codec/bytes.h"
#include "common/codec/codec.h"

namespace psd {

/// count × 16-bit floats, rounded to nearest even. `Format` defines them: `kName`, `kSummary`, `kLargest` (as
/// text), `kExponent` (its bits; all set: not finite), `kCode`, `from(float)` and `to(uint16_t)`. Immutable.
template <class Format>
class SixteenBit final : public Codec {
 public:
  static constexpr std::string_view kName = Format::kName, kSummary = Format::kSummary;
  explicit SixteenBit(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  bool suitsParameters() const override { return true; }
  uint64_t encodedBytes(uint64_t count) const override { return count * sizeof(uint16_t); }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    auto* const to = reinterpret_cast<uint16_t*>(out);
    vectorised([=]() PSD_VECTORISED {
      for (size_t i = 0; i < values.size(); ++i) to[i] = Format::from(values[i]);
    });
    return anyWithExponent(to, values.size(), Format::kExponent) ? beyondRange(kName, Format::kLargest)
                                                                 : Status();
  }
  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    const bool finite = !anyWithExponent(arrayAt<uint16_t>(bytes, 0), count, Format::kExponent);
    return finite ? Status() : nonFiniteValue(kName);
  }
  void decode(Bytes bytes, uint64_t, uint64_t begin, std::span<float> out) const override {
    const uint16_t* const from = arrayAt<uint16_t>(bytes, 0) + begin;
    vectorised([=]() PSD_VECTORISED {
      for (size_t i = 0; i < out.size(); ++i) out[i] = Format::to(from[i]);
    });
  }
  std::optional<DenseCode> denseCode(uint64_t) const override { return DenseCode{Format::kCode}; }
};

}  // namespace psd
