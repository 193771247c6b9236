#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Denotes a missing row. Row numbers are smaller.
inline constexpr uint32_t kNoRow = UINT32_MAX;

/// Memory layout of the values and optimizer slots of rows. Rows are grouped into chunks of a power of two of
/// rows; row number r is row r mod 2^chunkBits of chunk r / 2^chunkBits.
///
/// A chunk starts with its rows: each row's values, followed by its slots with one float per value. A row
/// takes 16, 32 or a multiple of 64 bytes, so it starts at a cache line or shares one without crossing it.
/// Slots with one float per row follow after all rows, as one array per slot. Immutable; a value type.
class RowLayout {
 public:
  static constexpr uint32_t kDimMax = 4096;
  static constexpr uint32_t kLineFloats = 16;  ///< floats per cache line
  static constexpr uint64_t kChunkBytes = uint64_t{32} << 20;

  /// `dim` is 1 … kDimMax. The rows of a chunk take at most `chunkBytes`, a power of two of at least one row.
  RowLayout(uint32_t dim, std::vector<Slot> slots, uint64_t chunkBytes = kChunkBytes);

  uint32_t dim() const { return dim_; }
  const std::vector<Slot>& slots() const { return slots_; }
  /// A plane is what a checkpoint calls a tensor: plane 0 holds the values, plane 1 + s slot s.
  uint32_t planeCount() const { return static_cast<uint32_t>(1 + slots_.size()); }
  /// Floats per row in a plane: `dim`, or 1 for a per-row slot.
  uint32_t width(uint32_t plane) const { return plane > 0 && slots_[plane - 1].perRow ? 1 : dim_; }

  /// Whether there are slots with one float per row.
  bool hasRowSlots() const { return perRow_ > 0; }
  /// Distance in floats between consecutive rows.
  uint32_t stride() const { return stride_; }
  /// Floats of a row including its per-value slots, without padding.
  uint32_t rowFloats() const { return rowFloats_; }
  uint32_t chunkBits() const { return chunkBits_; }
  uint32_t rowsPerChunk() const { return uint32_t{1} << chunkBits_; }
  /// Number of chunks that row numbers can address.
  uint64_t chunksMax() const { return (uint64_t{1} << 32) >> chunkBits_; }
  /// Bytes of one row including all slots and padding, without its meta word.
  uint64_t rowBytes() const { return (stride_ + uint64_t{perRow_}) * sizeof(float); }
  uint64_t chunkBytes() const { return rowBytes() << chunkBits_; }
  /// Offset of plane `plane` of row 0 of a chunk, in floats from the start of the chunk.
  uint64_t planeBegin(uint32_t plane) const { return begins_[plane]; }
  /// Distance in floats between consecutive rows of a plane.
  uint32_t planeStride(uint32_t plane) const { return plane > 0 && slots_[plane - 1].perRow ? 1 : stride_; }

 private:
  uint32_t dim_;
  std::vector<Slot> slots_;
  uint32_t perRow_ = 0;  // number of per-row slots
  uint32_t rowFloats_ = 0, stride_ = 0, chunkBits_ = 0;
  std::vector<uint64_t> begins_;
};

}  // namespace psd
