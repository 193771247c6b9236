#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::testing {

/// Encoded bytes, 8-byte aligned and with the heap block's exact size where possible, so that an overrun is
/// detected.
class EncodedBytes {
 public:
  explicit EncodedBytes(size_t size) : bytes_(size) {}
  std::byte* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  std::byte& operator[](size_t i) { return bytes_[i]; }
  Codec::Bytes span() const { return bytes_; }
  EncodedBytes first(size_t size) const {
    EncodedBytes out(size);
    if (size > 0) std::memcpy(out.data(), bytes_.data(), size);
    return out;
  }

 private:
  std::vector<std::byte> bytes_;
};

inline std::shared_ptr<const Codec> codecNamed(std::string_view spec) {
  auto codec = makeCodec(spec);
  PSD_REQUIRE_OK(codec);
  return *codec;
}

inline std::vector<float> decoded(const Codec& codec, const EncodedBytes& bytes, size_t count) {
  std::vector<float> values(count, -1.f);
  codec.decode(bytes.span(), count, 0, values);
  return values;
}

/// One trainer's side of a codec for one slice: encodes with error feedback.
class CodecTrainer {
 public:
  CodecTrainer(const Codec& codec, size_t count)
      : codec_(codec),
        residual_(codec.memorySlots() > 0 ? count : 0),
        velocity_(codec.memorySlots() > 1 ? count : 0) {}

  EncodedBytes encode(const std::vector<float>& gradient, uint64_t seed = 1) {
    EncodedBytes bytes(codec_.encodedBytes(gradient.size()));
    if (residual_.empty()) {
      PSD_REQUIRE_OK(codec_.encode(gradient, seed, bytes.data()));
      return bytes;
    }
    codec_.accumulate(gradient, memory());
    PSD_REQUIRE_OK(codec_.encode(residual_, seed, bytes.data()));
    codec_.settle(bytes.span(), memory());
    return bytes;
  }
  CodecMemory memory() { return {residual_, velocity_}; }
  const std::vector<float>& residual() const { return residual_; }
  const std::vector<float>& velocity() const { return velocity_; }

 private:
  const Codec& codec_;
  std::vector<float> residual_, velocity_;
};

inline std::vector<float> normalValues(size_t count, Random& random, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(random.engine());
  return values;
}

}  // namespace psd::testing
