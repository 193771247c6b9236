#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace psd {

/// A 128-bit sum of a tensor's bytes that can be updated for a few changed words without reading the others.
///
/// The bytes are taken as 8-byte little-endian words, the last one padded with zeros; word i contributes two
/// 64-bit numbers mix(i, bits), and each half of the sum is the sum of one of them modulo 2^64. The index
/// counts from the start of the tensor, so a sum depends neither on the dtype nor on the tensor's place in a
/// file. The number of bytes is not part of it.
///
/// For each index mix() is a bijection of the word: an error inside one word is always found. Errors in
/// several words, exchanged or stale values among them, cancel out in both halves with a probability of about
/// 2^-128, in one half 2^-64. A sum protects against accidents, not against a peer who looks for a collision.
///
/// A value type.
struct ContentSum {
  uint64_t first = 0, second = 0;

  bool operator==(const ContentSum&) const = default;
  ContentSum& operator+=(const ContentSum& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
  ContentSum& operator-=(const ContentSum& other) {
    first -= other.first;
    second -= other.second;
    return *this;
  }
};

/// The sum of a whole tensor.
ContentSum contentSum(std::span<const std::byte> tensor);
/// The part of a tensor's bytes from word `firstWord` on in its sum.
ContentSum contentSumAt(uint64_t firstWord, std::span<const std::byte> bytes);
/// The part of the words [begin, end) in the sum of `tensor`.
ContentSum contentSum(std::span<const std::byte> tensor, uint64_t begin, uint64_t end);

/// Word `index` of a tensor, padded with zeros.
inline uint64_t contentWord(std::span<const std::byte> tensor, uint64_t index) {
  uint64_t word = 0;
  const uint64_t at = index * sizeof word;
  if (tensor.size() - at >= sizeof word) {
    std::memcpy(&word, tensor.data() + at, sizeof word);
  } else {
    std::memcpy(&word, tensor.data() + at, tensor.size() - at);
  }
  return word;
}

/// Collects changes of single words, and applies them to a sum together. Owned by one thread.
class ContentSumChanges {
 public:
  /// Word `index` changes from `before` to `after`.
  void add(uint64_t index, uint64_t before, uint64_t after) {
    index_[count_] = index;
    before_[count_] = before;
    after_[count_] = after;
    if (++count_ == kBatch) flush();
  }
  /// The sum of all changes.
  ContentSum total() {
    flush();
    return total_;
  }

 private:
  static constexpr size_t kBatch = 256;
  void flush();

  size_t count_ = 0;
  ContentSum total_;
  std::array<uint64_t, kBatch> index_, before_, after_;
};

}  // namespace psd
