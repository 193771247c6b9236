#include "common/patch/content_sum.h"

#include <algorithm>
#include <bit>

#include "common/patch/instruction_sets.h"
#include "common/types/split_mix.h"

namespace psd {
namespace {

static_assert(std::endian::native == std::endian::little, "words of a tensor are little endian");

constexpr uint64_t kFirst = 0xbf58476d1ce4e5b9, kSecond = 0x94d049bb133111eb;

constexpr uint64_t keyOf(uint64_t index) { return (index + 1) * kSplitMixStep; }

/// Each step is a bijection, and so is each half of the result.
PSD_BEST_INSTRUCTIONS inline ContentSum mix(uint64_t key, uint64_t word) {
  uint64_t x = word + key;
  x ^= x >> 32;
  x *= kFirst;
  x ^= x >> 29;
  uint64_t y = x * kSecond;
  y ^= y >> 32;
  return {x, y};
}

/// The memory after a piece is fetched while the piece is summed.
constexpr uint64_t kLine = 64, kPiece = 1024 / sizeof(uint64_t), kAhead = 2048;

ContentSum sumOfWords(const std::byte* bytes, uint64_t begin, uint64_t count) {
  return withBestInstructions([=]() PSD_BEST_INSTRUCTIONS {
    uint64_t first = 0, second = 0, key = keyOf(begin);
    const auto sum = [&](uint64_t from, uint64_t words) PSD_BEST_INSTRUCTIONS {
      uint64_t one = 0, other = 0;
      for (uint64_t i = from; i < from + words; ++i, key += kSplitMixStep) {
        uint64_t word;
        std::memcpy(&word, bytes + i * sizeof word, sizeof word);
        const ContentSum mixed = mix(key, word);
        one += mixed.first;
        other += mixed.second;
      }
      first += one;
      second += other;
    };
    uint64_t at = 0;
    for (; at + kPiece <= count; at += kPiece) {
      for (uint64_t line = 0; line < kPiece * sizeof(uint64_t); line += kLine) {
        __builtin_prefetch(bytes + at * sizeof(uint64_t) + kAhead + line);
      }
      sum(at, kPiece);
    }
    sum(at, count - at);
    return ContentSum{first, second};
  });
}

}  // namespace

ContentSum contentSumAt(uint64_t firstWord, std::span<const std::byte> bytes) {
  const uint64_t whole = bytes.size() / sizeof(uint64_t);
  ContentSum sum;
  if (whole > 0) sum = sumOfWords(bytes.data(), firstWord, whole);
  if (bytes.size() % sizeof(uint64_t) != 0) sum += mix(keyOf(firstWord + whole), contentWord(bytes, whole));
  return sum;
}

ContentSum contentSum(std::span<const std::byte> tensor, uint64_t begin, uint64_t end) {
  const uint64_t from = begin * sizeof(uint64_t);
  if (begin >= end || from >= tensor.size()) return {};
  const uint64_t bytes = std::min<uint64_t>(tensor.size() - from, (end - begin) * sizeof(uint64_t));
  return contentSumAt(begin, tensor.subspan(from, bytes));
}

ContentSum contentSum(std::span<const std::byte> tensor) { return contentSumAt(0, tensor); }

void ContentSumChanges::flush() {
  total_ += withBestInstructions([count = count_, index = index_.data(), before = before_.data(),
                                  after = after_.data()]() PSD_BEST_INSTRUCTIONS {
    uint64_t first = 0, second = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t key = keyOf(index[i]);
      const ContentSum removed = mix(key, before[i]), added = mix(key, after[i]);
      first += added.first - removed.first;
      second += added.second - removed.second;
    }
    return ContentSum{first, second};
  });
  count_ = 0;
}

}  // namespace psd
