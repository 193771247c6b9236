#pragma once

#include <cstring>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"
#include "common/types/finite.h"

namespace psd {

/// Unencoded values: count × float32. Immutable.
class None final : public Codec {
 public:
  static constexpr std::string_view kName = "none", kSummary = "float32, 4 bytes per value";
  explicit None(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  uint32_t memorySlots() const override { return 0; }
  bool suitsParameters() const override { return true; }
  uint64_t encodedBytes(uint64_t count) const override { return count * sizeof(float); }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    std::memcpy(out, values.data(), values.size_bytes());
    return {};
  }
  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    return allFinite({arrayAt<float>(bytes, 0), count}) ? Status() : nonFiniteValue(kName);
  }
  void decode(Bytes bytes, uint64_t, uint64_t begin, std::span<float> out) const override {
    std::memcpy(out.data(), arrayAt<float>(bytes, 0) + begin, out.size_bytes());
  }
};

}  // namespace psd
