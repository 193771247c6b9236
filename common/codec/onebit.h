#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"

namespace psd {

/// Signs, and for each sign the mean of its values in a block of 1024 (Seide, Fu, Droppo, Li, Yu: 1-Bit
/// Stochastic Gradient Descent, 2014):
///   2 × float32 per block: the mean of the non-negative values, the mean of the negative ones;
///   uint32 × ⌈count / 32⌉: bit i % 32 of word i / 32 is set if value i is negative; bits past the end are 0.
/// Immutable.
class OneBit final : public Codec {
 public:
  static constexpr std::string_view kName = "onebit",
                                    kSummary = "the sign, 1 bit per value, and two means per 1024 values";
  explicit OneBit(CodecOptions&) {}

  std::string_view name() const override { return kName; }
  uint64_t encodedBytes(uint64_t count) const override {
    return wordsAt(count) + wordsOf(count) * kWordBytes;
  }

  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override {
    auto* const means = reinterpret_cast<float*>(out);
    auto* const words = reinterpret_cast<uint32_t*>(out + wordsAt(values.size()));
    for (uint64_t block = 0; block < blocksOf(values.size()); ++block) {
      const uint64_t begin = block * kCodecBlock;
      encodeBlock(values.subspan(begin, std::min<uint64_t>(kCodecBlock, values.size() - begin)),
                  means + 2 * block, words + begin / kWordBits);
    }
    return {};
  }

  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() != encodedBytes(count)) {
      return badSize(kName, count, encodedBytes(count), bytes.size());
    }
    const float* const means = arrayAt<float>(bytes, 0);
    for (uint64_t i = 0; i < 2 * blocksOf(count); ++i) {
      if (!std::isfinite(means[i])) return nonFiniteValue(kName);
    }
    const uint32_t last = arrayAt<uint32_t>(bytes, wordsAt(count))[wordsOf(count) - 1];
    if (count % kWordBits != 0 && last >> (count % kWordBits) != 0) {
      return badBytes(kName, "a bit past the last value is set");
    }
    return {};
  }

  void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const override {
    const float* const means = arrayAt<float>(bytes, 0);
    const uint32_t* const words = arrayAt<uint32_t>(bytes, wordsAt(count)) + begin / kWordBits;
    for (uint64_t at = 0; at < out.size(); at += kCodecBlock) {
      const float* const pair = means + (begin + at) / kCodecBlock * 2;
      decodeBlock(words + at / kWordBits, pair[0], pair[1],
                  out.subspan(at, std::min<uint64_t>(kCodecBlock, out.size() - at)));
    }
  }
  std::optional<DenseCode> denseCode(uint64_t count) const override {
    return DenseCode{DenseCode::Kind::onebit, wordsAt(count)};
  }

 private:
  static constexpr uint32_t kWordBits = 32, kWordBytes = 4, kLanes = 8;
  static uint64_t wordsAt(uint64_t count) { return blocksOf(count) * 2 * sizeof(float); }
  static uint64_t wordsOf(uint64_t count) { return (count + kWordBits - 1) / kWordBits; }

  static void encodeBlock(std::span<const float> values, float* means, uint32_t* words) {
    float positive = 0, negative = 0;
    uint32_t negatives = 0;
    vectorised([=, &positive, &negative, &negatives]() PSD_VECTORISED {
      Sums sums;
      const size_t full = values.size() / kWordBits * kWordBits;
      for (size_t begin = 0; begin < full; begin += kWordBits) {
        words[begin / kWordBits] = addWord(values.data() + begin, sums);
      }
      if (full < values.size()) {
        float last[kWordBits] = {};  // zeros count as non-negative
        std::copy(values.begin() + static_cast<ptrdiff_t>(full), values.end(), last);
        words[full / kWordBits] = addWord(last, sums);
      }
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        positive += sums.positive[lane];
        negative += sums.negative[lane];
      }
      negatives = sums.negatives;
    });
    means[0] = mean(positive, values.size() - negatives);
    means[1] = mean(negative, negatives);
  }

  /// Sums of values × kShrink, so that, up to rounding, no sum of a block overflows. Kept in lanes, so that
  /// they vectorise with a fixed order.
  struct Sums {
    float positive[kLanes] = {}, negative[kLanes] = {};
    uint32_t negatives = 0;
  };
  static constexpr float kShrink = 1.f / kCodecBlock;

  /// Adds 32 values to `sums`. Returns their sign bits.
  PSD_VECTORISED static uint32_t addWord(const float* values, Sums& sums) {
    uint32_t lanes[kLanes] = {};
#pragma GCC unroll 1
    for (uint32_t row = 0; row < kWordBits; row += kLanes) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] |= (values[row + lane] < 0 ? 1u : 0u) << row;
      }
      // A separate loop for each sum: the compiler does not vectorise a combined one.
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        sums.positive[lane] += (values[row + lane] < 0 ? 0.f : values[row + lane]) * kShrink;
      }
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        sums.negative[lane] += (values[row + lane] < 0 ? values[row + lane] : 0.f) * kShrink;
      }
    }
    uint32_t word = 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane) word |= lanes[lane] << lane;
    sums.negatives += static_cast<uint32_t>(std::popcount(word));
    return word;
  }

  static float mean(float sum, uint64_t count) {
    constexpr float kMost = std::numeric_limits<float>::max();
    if (count == 0) return 0;
    return std::clamp(sum * (static_cast<float>(kCodecBlock) / static_cast<float>(count)), -kMost, kMost);
  }

  static void decodeBlock(const uint32_t* words, float positive, float negative, std::span<float> out) {
    vectorised([=]() PSD_VECTORISED {
      const size_t full = out.size() / kWordBits * kWordBits;
      float* to = out.data();
      for (size_t begin = 0; begin < full; begin += kWordBits, to += kWordBits) {
        const uint32_t word = words[begin / kWordBits];
        for (uint32_t i = 0; i < kWordBits; ++i) to[i] = (word & 1u << i) != 0 ? negative : positive;
      }
      for (size_t i = full; i < out.size(); ++i) {
        out[i] = words[full / kWordBits] >> (i - full) & 1u ? negative : positive;
      }
    });
  }
};

}  // namespace psd
