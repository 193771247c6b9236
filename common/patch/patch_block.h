#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// The changes of up to 65536 adjacent elements in a tensor's patch. Its bytes:
///   uint32  index: the block begins at element index × 65536;
///   uint16  how the positions are stored, a PatchPositions;
///   uint16  the number of positions − 1;
///   the positions, relative to the block and ascending;
///   the new values, in the order of their positions.
/// Numbers are little-endian and nothing is aligned.
inline constexpr uint64_t kPatchBlockElements = 65536;

enum class PatchPositions : uint16_t {
  elements,  ///< of changed elements, in Elias–Fano code
  runs,      ///< where a run of changed elements begins, where it ends, where the next one begins, …, in
             ///< Elias–Fano code; the end of the block is omitted
  bitmap,    ///< one bit for each element of the block, from the least significant of the first byte
};

/// Elias–Fano code of n ascending positions below u, with l = ⌊log2(u / n)⌋: the low l bits of each, without
/// gaps; in the next byte begin n + ⌊(u − 1) / 2^l⌋ bits, of which bit ⌊position i / 2^l⌋ + i is set.
struct EliasFano {
  uint32_t lowBits, lowBytes, highBytes;

  EliasFano(uint32_t count, uint32_t universe);
  uint32_t bytes() const { return lowBytes + highBytes; }
};

/// One bit per element of a block: whether it is changed. The bits past the last element are zero.
using ChangedBits = std::array<uint64_t, kPatchBlockElements / 64>;

/// Appends blocks to a patch. Owned by one thread.
class PatchBlockWriter {
 public:
  explicit PatchBlockWriter(uint32_t elementBytes) : elementBytes_(elementBytes) {}

  /// Appends the block of those of `elements` elements that are `changed`; none if no element is. `values`:
  /// of all elements of the block. Returns the positions of the changed ones, until the next call.
  std::span<const uint16_t> append(uint32_t index, uint32_t elements, const ChangedBits& changed,
                                   const std::byte* values, std::vector<std::byte>& out);

 private:
  /// How a block is stored.
  struct Choice {
    PatchPositions kind;
    std::span<const uint16_t> positions;
    uint32_t positionBytes;
    uint64_t valueBytes;
  };
  /// The shortest way. `places`: of the changed elements; `boundaries`: the number of positions as runs.
  Choice choose(const ChangedBits& changed, uint32_t elements, std::span<const uint16_t> places,
                uint32_t boundaries);
  void writeValues(const std::byte* values, const Choice& choice, uint32_t elements, std::byte* out) const;

  const uint32_t elementBytes_;
  std::vector<uint16_t> positions_, boundaries_;
};

/// A block that was read.
struct PatchBlock {
  uint32_t index = 0;
  uint32_t elements = 0;                ///< of the tensor in this block
  bool runs = false;                    ///< whether `positions` are those of PatchPositions::runs
  std::span<const uint16_t> positions;  ///< ascending, below `elements`; valid until the next block is read
  const std::byte* values = nullptr;
  std::span<const std::byte> bytes;  ///< of the whole block

  uint64_t firstElement() const { return uint64_t{index} * kPatchBlockElements; }
  /// Calls visit(begin, end, values) for each run of adjacent elements of a block with `runs`.
  template <class Visit>
  void forEachRun(uint32_t elementBytes, const Visit& visit) const {
    const std::byte* at = values;
    for (size_t i = 0; i < positions.size(); i += 2) {
      const uint32_t begin = positions[i], end = i + 1 < positions.size() ? positions[i + 1] : elements;
      visit(begin, end, at);
      at += uint64_t{end - begin} * elementBytes;
    }
  }
};

/// Reads the blocks of a tensor's patch from any bytes: never past their end, and in memory of at most 128
/// KiB. Owned by one thread.
class PatchBlockReader {
 public:
  /// `elements`: of the tensor.
  PatchBlockReader(std::span<const std::byte> bytes, uint64_t elements, uint32_t elementBytes);

  /// The next block; nullptr after the last one. An Error says what is damaged.
  Result<const PatchBlock*> next();

 private:
  Status readPositions(PatchPositions kind, uint32_t count);

  std::span<const std::byte> rest_;
  const uint64_t elements_;
  const uint32_t elementBytes_;
  uint64_t nextIndex_ = 0;
  std::vector<uint16_t> positions_;
  PatchBlock block_;
};

}  // namespace psd
