#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/types/row_hash.h"

namespace psd {

/// Counts how often ids were seen recently, in fixed memory: a count-min sketch with conservative update
/// (Estan, Varghese 2002). Its blocks, a cache line each, are in hash order, so that the filter can be split
/// like its table.
///
/// An id uses three of its block's 62 counters; its count is their minimum. It may be too high where other
/// ids share the counters, and too low only by what aging removed: a block halves its counters after 16 ·
/// (pushes − 1) additions. By then it has seen about 12 ids, a fifth of its number of counters, and one in
/// ten counts is too high. A value type; owned by one thread.
class AdmissionFilter {
 public:
  static constexpr uint32_t kBlockBitsMax = 22;
  static constexpr uint64_t kBlockBytes = 64;
  static constexpr size_t kSavedWords = 1 + kBlockBytes / sizeof(uint64_t);  ///< per block; see saved()

  /// Parameters that two filters must share for one to restore the other's state. A value type.
  struct Terms {
    uint32_t pushes = 2;     ///< counts up to this one matter, 2 … 255
    uint32_t blockBits = 0;  ///< the space of hashes has 2^blockBits blocks
    bool operator==(const Terms&) const = default;

    /// Terms with the largest number of blocks that fits into `bytes`, at least one.
    static Terms of(uint32_t pushes, uint64_t bytes);
    bool valid() const { return pushes >= 2 && pushes <= UINT8_MAX && blockBits <= kBlockBitsMax; }
  };

  /// An empty filter for ids whose hashes are in the range.
  AdmissionFilter(Terms terms, HashRange range);

  /// Memory of such a filter.
  static uint64_t bytesOf(const Terms& terms, HashRange range) {
    return blocksOf(terms, range) * kBlockBytes;
  }

  const Terms& terms() const { return terms_; }
  uint64_t bytes() const { return blocks_.size() * kBlockBytes; }
  /// The count of ids with that hash.
  uint32_t count(uint64_t hash) const;
  void add(uint64_t hash);

  /// All blocks with a non-zero counter: the number of each, followed by its 8 words.
  std::vector<uint64_t> saved() const;
  /// Merges the result of saved() of a filter with the same terms, for any hash range: the larger counter
  /// wins. False if `saved` is malformed.
  bool restore(std::span<const uint64_t> saved);

 private:
  struct alignas(kBlockBytes) Block {
    uint16_t adds = 0;  ///< since the counters were halved
    std::array<uint8_t, 62> counters{};
  };
  static_assert(sizeof(Block) == kBlockBytes);
  using Places = std::array<uint32_t, 3>;  // counters of an id in its block

  static uint64_t blockOf(const Terms& terms, uint64_t hash) {
    return terms.blockBits == 0 ? 0 : hash >> (64 - terms.blockBits);
  }
  static uint64_t blocksOf(const Terms& terms, HashRange range) {
    return blockOf(terms, range.last) - blockOf(terms, range.first) + 1;
  }
  uint64_t blockOf(uint64_t hash) const { return blockOf(terms_, hash); }
  static Places placesOf(uint64_t hash);

  Terms terms_;
  uint64_t first_;  // number of blocks_[0] in the space of hashes
  std::vector<Block> blocks_;
};

}  // namespace psd
