#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Stands for a row that is not there. Row numbers are below it.
inline constexpr uint32_t kNoRow = UINT32_MAX;

/// Where the values and the optimizer's slots of a row lie. Rows are in chunks of a power of two of rows; row
/// number r is row r mod 2^chunkBits of chunk r / 2^chunkBits.
///
/// A chunk begins with its rows: the values and after them each slot that has a float per value; a row takes
/// 16, 32 or a multiple of 64 bytes, so that it begins at a cache line or shares one without crossing it.
/// Slots that have one float per row come after all rows, in an array of the chunk for each. Immutable; a
/// value type.
class RowLayout {
 public:
  static constexpr uint32_t kDimMax = 4096;
  static constexpr uint32_t kLineFloats = 16;  ///< of a cache line
  static constexpr uint64_t kChunkBytes = uint64_t{32} << 20;

  /// `dim` is 1 … kDimMax. The rows of a chunk take at most `chunkBytes`, a power of two with room for one.
  RowLayout(uint32_t dim, std::vector<Slot> slots, uint64_t chunkBytes = kChunkBytes);

  uint32_t dim() const { return dim_; }
  const std::vector<Slot>& slots() const { return slots_; }
  /// Planes are what a checkpoint calls a tensor: 0 are the values, 1 + s is slot s.
  uint32_t planeCount() const { return static_cast<uint32_t>(1 + slots_.size()); }
  /// Floats of a row in a plane: `dim`, or 1 for a slot per row.
  uint32_t width(uint32_t plane) const { return plane > 0 && slots_[plane - 1].perRow ? 1 : dim_; }

  /// Whether slots have one float per row.
  bool hasRowSlots() const { return perRow_ > 0; }
  /// Floats from the begin of one row to that of the next.
  uint32_t stride() const { return stride_; }
  /// Floats that a row takes, with its slots, at its own place.
  uint32_t rowFloats() const { return rowFloats_; }
  uint32_t chunkBits() const { return chunkBits_; }
  uint32_t rowsPerChunk() const { return uint32_t{1} << chunkBits_; }
  /// Chunks that row numbers can name.
  uint64_t chunksMax() const { return (uint64_t{1} << 32) >> chunkBits_; }
  /// Bytes of one row with all slots, without its meta word.
  uint64_t rowBytes() const { return (stride_ + uint64_t{perRow_}) * sizeof(float); }
  uint64_t chunkBytes() const { return rowBytes() << chunkBits_; }
  /// Where plane `plane` of a chunk's row 0 is, in floats from the chunk's begin.
  uint64_t planeBegin(uint32_t plane) const { return begins_[plane]; }
  /// Floats between a plane's places in one row and the next.
  uint32_t planeStride(uint32_t plane) const { return plane > 0 && slots_[plane - 1].perRow ? 1 : stride_; }

 private:
  uint32_t dim_;
  std::vector<Slot> slots_;
  uint32_t perRow_ = 0;  // slots
  uint32_t rowFloats_ = 0, stride_ = 0, chunkBits_ = 0;
  std::vector<uint64_t> begins_;
};

}  // namespace psd
