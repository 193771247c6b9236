#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/types/row_hash.h"

namespace psd {

/// Counts, in memory that does not grow, how often each of many ids was seen of late: a count-min sketch with
/// conservative update (Estan, Varghese 2002), in blocks of a cache line that follow the order of the hashes,
/// so that it can be cut where a table is.
///
/// An id has three of its block's 62 counters, and its count is the least of them: it may be too high where
/// other ids have the same ones, and never too low but by what was forgotten. A block halves its counters
/// once it has counted 16 · (pushes − 1) times. Until then it knows some 12 ids, a fifth as many as counters,
/// with one in ten counts too high. A value type; owned by one thread.
class AdmissionFilter {
 public:
  static constexpr uint32_t kBlockBitsMax = 22;
  static constexpr uint64_t kBlockBytes = 64;
  static constexpr size_t kSavedWords = 1 + kBlockBytes / sizeof(uint64_t);  ///< of a block, see saved()

  /// What two filters must agree in to go on from each other. A value type.
  struct Terms {
    uint32_t pushes = 2;     ///< counts up to this one matter, 2 … 255
    uint32_t blockBits = 0;  ///< the space of hashes has 2^blockBits blocks
    bool operator==(const Terms&) const = default;

    /// With the largest number of blocks that take no more than `bytes`, and one at least.
    static Terms of(uint32_t pushes, uint64_t bytes);
    bool valid() const { return pushes >= 2 && pushes <= UINT8_MAX && blockBits <= kBlockBitsMax; }
  };

  /// A filter that has counted nothing, for ids whose hashes lie in the range.
  AdmissionFilter(Terms terms, HashRange range);

  /// Bytes that one takes.
  static uint64_t bytesOf(const Terms& terms, HashRange range) {
    return blocksOf(terms, range) * kBlockBytes;
  }

  const Terms& terms() const { return terms_; }
  uint64_t bytes() const { return blocks_.size() * kBlockBytes; }
  /// How often an id with that hash was counted.
  uint32_t count(uint64_t hash) const;
  void add(uint64_t hash);

  /// All blocks that have counted anything: the number of each and its 8 words.
  std::vector<uint64_t> saved() const;
  /// Takes over what saved() gave of a filter with the same terms, for any hashes: where both have counted,
  /// the larger counts. False where it cannot be what saved() gave.
  bool restore(std::span<const uint64_t> saved);

 private:
  struct alignas(kBlockBytes) Block {
    uint16_t adds = 0;  ///< since the counters were halved
    std::array<uint8_t, 62> counters{};
  };
  static_assert(sizeof(Block) == kBlockBytes);
  using Places = std::array<uint32_t, 3>;  // of an id in its block

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
