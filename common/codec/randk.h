#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"
#include "common/types/finite.h"
#include "common/types/split_mix.h"

namespace psd {

/// Values at randomly drawn places. The places are not sent, only their seed:
///   uint64 seed;
///   uint32 k: number of values, at most count; uint32 0;
///   float32 × k: the values, in the order of their places.
/// The values are divided into k nearly equal runs, run j starting at ⌊j·count/k⌋, and one value is drawn
/// from each: with z the output of SplitMix64 for the state seed + j·0x9e3779b97f4a7c15, the place ⌊(z >>
/// 32)·length / 2³²⌋ of the run. So places ascend, and each can be computed independently.
///
/// Values are sent unscaled. Scaling them by count/k would make the estimate unbiased without memory (Wangni,
/// Wang, Liu, Zhang 2018), but with error feedback it matters that ‖x − C(x)‖² shrinks to (1 − k/count)‖x‖²
/// (Stich, Cordonnier, Jaggi 2018), and scaling would make it grow. Immutable.
class RandK final : public Codec {
 public:
  static constexpr std::string_view kName = "randk", kSummary = "values at randomly drawn places";
  explicit RandK(CodecOptions& options) : fraction_(options.fraction()) {}

  std::string_view name() const override { return kName; }
  uint64_t encodedBytes(uint64_t count) const override { return bytesFor(kept(count)); }

  Status encode(std::span<const float> values, uint64_t seed, std::byte* out) const override {
    const Head head{seed, static_cast<uint32_t>(kept(values.size())), 0};
    std::memcpy(out, &head, sizeof head);
    auto* const to = reinterpret_cast<float*>(out + sizeof head);
    for (uint64_t i = 0; i < head.entries; ++i) to[i] = values[place(head, values.size(), i)];
    return {};
  }

  Status check(Bytes bytes, uint64_t count) const override {
    if (bytes.size() < sizeof(Head)) return badSize(kName, count, sizeof(Head), bytes.size());
    const Head head = headOf(bytes);
    if (head.entries == 0 || head.entries > count || head.reserved != 0) {
      return badBytes(kName, std::to_string(head.entries) + " values of " + std::to_string(count) +
                                 " are not a valid encoding");
    }
    if (bytes.size() != bytesFor(head.entries)) {
      return badSize(kName, head.entries, bytesFor(head.entries), bytes.size());
    }
    return allFinite({arrayAt<float>(bytes, sizeof(Head)), head.entries}) ? Status() : nonFiniteValue(kName);
  }

  void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.f);
    const Head head = headOf(bytes);
    const float* const values = arrayAt<float>(bytes, sizeof(Head));
    // The run that holds `begin`, or the previous one.
    for (uint64_t i = begin * head.entries / count; i < head.entries; ++i) {
      const uint64_t at = place(head, count, i);
      if (at >= begin + out.size()) break;
      if (at >= begin) out[at - begin] = values[i];
    }
  }
  std::optional<uint64_t> entryCount(Bytes bytes, uint64_t) const override { return headOf(bytes).entries; }
  void entries(Bytes bytes, uint64_t count, uint64_t first, std::span<uint32_t> places,
               std::span<float> values) const override {
    const Head head = headOf(bytes);
    for (size_t i = 0; i < places.size(); ++i) {
      places[i] = static_cast<uint32_t>(place(head, count, first + i));
    }
    std::memcpy(values.data(), arrayAt<float>(bytes, sizeof(Head)) + first, values.size_bytes());
  }

 private:
  struct Head {
    uint64_t seed = 0;
    uint32_t entries = 0;
    uint32_t reserved = 0;
  };

  static uint64_t bytesFor(uint64_t entries) { return sizeof(Head) + entries * sizeof(float); }
  static Head headOf(Bytes bytes) {
    Head head;
    std::memcpy(&head, bytes.data(), sizeof head);
    return head;
  }
  uint64_t kept(uint64_t count) const {
    return std::clamp<uint64_t>(std::llround(fraction_ * static_cast<double>(count)), 1, count);
  }
  static uint64_t place(const Head& head, uint64_t count, uint64_t entry) {
    const uint64_t begin = entry * count / head.entries, end = (entry + 1) * count / head.entries;
    return begin + ((splitMix(head.seed + entry * kSplitMixStep) >> 32) * (end - begin) >> 32);
  }

  const double fraction_;
};

}  // namespace psd
