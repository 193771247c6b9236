#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"

namespace psd {

/// The bytes of topk and dgc: some values with their places, all others zero.
///   uint32 k: number of values, at most count;
///   uint32 × ⌈count / 65536⌉: the number of them in each group of 65536 places;
///   float32 × k: the values, in the order of their places;
///   uint16 × k: the place of each in its group, ascending.
/// Immutable.
class SparseCodec : public Codec {
 public:
  /// `fraction`: fraction of the values that is sent, at least one value.
  explicit SparseCodec(double fraction) : fraction_(fraction) {}

  uint64_t encodedBytes(uint64_t count) const override { return bytesFor(count, kept(count)); }
  Status encode(std::span<const float> values, uint64_t, std::byte* out) const override;
  Status check(Bytes bytes, uint64_t count) const override;
  void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const override;
  std::optional<uint64_t> entryCount(Bytes bytes, uint64_t) const override {
    return *arrayAt<uint32_t>(bytes, 0);
  }
  /// Memory of an encoding. Up to 7 bytes past its end are readable.
  struct Encoded {
    std::shared_ptr<const void> owner;
    Bytes bytes;
  };
  /// The lossless encoding of `values`: all that are not zero. Nothing if it takes more than `mostBytes`, or
  /// if some are not finite.
  static std::optional<Encoded> encodeNonZeros(std::span<const float> values, uint64_t mostBytes);
  void entries(Bytes bytes, uint64_t count, uint64_t first, std::span<uint32_t> places,
               std::span<float> values) const override;

 private:
  static constexpr uint64_t kGroup = 65536;
  static uint64_t groupsOf(uint64_t count) { return (count + kGroup - 1) / kGroup; }
  static uint64_t valuesAt(uint64_t count) { return (1 + groupsOf(count)) * sizeof(uint32_t); }
  static uint64_t bytesFor(uint64_t count, uint64_t entries) {
    return valuesAt(count) + entries * (sizeof(float) + sizeof(uint16_t));
  }
  uint64_t kept(uint64_t count) const {
    return std::clamp<uint64_t>(std::llround(fraction_ * static_cast<double>(count)), 1, count);
  }

  /// Writes the encoding of the `k` values whose magnitudeBits() are at least `bits` and for which takes(i)
  /// holds.
  template <class Takes>
  static void writeLarge(std::span<const float> values, uint32_t bits, uint64_t k, std::byte* out,
                         const Takes& takes);

  const double fraction_;
};

/// Whether a sample of `count` values of `valueBytes` bytes has so few nonzero ones that encodeNonZeros(),
/// which takes six bytes for each, would halve their size.
template <class IsZero>
bool looksSparse(size_t count, size_t valueBytes, const IsZero& isZero) {
  constexpr size_t kSample = 32;
  const size_t stride = std::max<size_t>(1, count / kSample) | 1;  // odd: meets all columns of most matrices
  size_t seen = 0, nonZeros = 0;
  for (size_t i = 0; i < count; i += stride, ++seen) nonZeros += isZero(i) ? 0 : 1;
  return 2 * 6 * nonZeros <= seen * valueBytes;
}

/// The set of the largest values: all whose magnitudeBits() exceed `bits`, and the first `equal` values whose
/// magnitudeBits() are `bits`.
struct LargestValues {
  uint32_t bits = 0;
  uint64_t equal = 0;
};
/// Finds the `k` largest magnitudes, 0 < k <= values.size(). Of equal magnitudes the first ones are chosen.
LargestValues findLargest(std::span<const float> values, uint64_t k);

}  // namespace psd
