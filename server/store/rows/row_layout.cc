#include "server/store/rows/row_layout.h"

#include <bit>
#include <utility>

namespace psd {
namespace {

/// Rounds up to 16 or 32 bytes, or to whole cache lines.
uint32_t roundedStride(uint32_t floats) {
  if (floats <= 4) return 4;
  if (floats <= 8) return 8;
  return (floats + RowLayout::kLineFloats - 1) / RowLayout::kLineFloats * RowLayout::kLineFloats;
}

}  // namespace

RowLayout::RowLayout(uint32_t dim, std::vector<Slot> slots, uint64_t chunkBytes)
    : dim_(dim), slots_(std::move(slots)) {
  for (const Slot& slot : slots_) (slot.perRow ? perRow_ : rowFloats_) += slot.perRow ? 1 : dim;
  rowFloats_ += dim;
  stride_ = roundedStride(rowFloats_);
  const uint64_t rows = std::bit_floor(chunkBytes / (stride_ * sizeof(float)));
  chunkBits_ = static_cast<uint32_t>(std::countr_zero(rows));
  begins_.push_back(0);
  uint64_t inRow = dim, afterRows = uint64_t{stride_} << chunkBits_;
  for (const Slot& slot : slots_) {
    uint64_t& begin = slot.perRow ? afterRows : inRow;
    begins_.push_back(begin);
    begin += slot.perRow ? rowsPerChunk() : dim;
  }
}

}  // namespace psd
