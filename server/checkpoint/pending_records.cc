#include "server/checkpoint/pending_records.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

constexpr uint64_t kSmallBytes = uint64_t{64} << 10;  // records up to this size share a piece
constexpr uint64_t kSharedBytes = 4 * kSmallBytes;    // size of a shared piece

}  // namespace

PendingRecords::Piece& PendingRecords::place(uint64_t bytes, ByteBudget::Lease space) {
  rooms_.push_back(std::move(space));
  if (!pieces_.empty() && pieces_.back().capacity() - pieces_.back().size() >= bytes) return pieces_.back();
  const auto fits = std::find_if(spare_.begin(), spare_.end(),
                                 [&](const Piece& piece) { return piece.capacity() >= bytes; });
  if (fits == spare_.end()) {
    pieces_.emplace_back().reserve(bytes <= kSmallBytes ? kSharedBytes : bytes);
  } else {
    pieces_.push_back(std::move(*fits));
    spare_.erase(fits);
  }
  return pieces_.back();
}

void PendingRecords::clear(uint64_t spareBytesMax) {
  uint64_t kept = 0;
  for (const Piece& piece : spare_) kept += piece.capacity();
  for (Piece& piece : pieces_) {
    if (kept + piece.capacity() > spareBytesMax) continue;
    kept += piece.capacity();
    piece.clear();
    spare_.push_back(std::move(piece));
  }
  pieces_.clear();
  rooms_.clear();
}

}  // namespace psd
