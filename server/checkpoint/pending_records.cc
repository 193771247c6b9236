#include "server/checkpoint/pending_records.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

constexpr uint64_t kSmallBytes = uint64_t{64} << 10;  // records up to this size share a piece
constexpr uint64_t kSharedBytes = 4 * kSmallBytes;    // size of a shared piece

}  // namespace

PendingRecords::Piece& PendingRecords::room(uint64_t bytes, uint64_t atLeast) {
  if (!pieces_.empty() && !pieces_.back().owner) {
    const std::vector<std::byte>& last = pieces_.back().bytes;
    if (last.capacity() - last.size() >= bytes) return pieces_.back();
  }
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const std::vector<std::byte>& spare) {
    return spare.capacity() >= bytes && spare.capacity() / 2 <= atLeast;
  });
  Piece& next = pieces_.emplace_back();
  if (fits == spare_.end()) {
    next.bytes.reserve(atLeast);
  } else {
    next.bytes = std::move(*fits);
    spare_.erase(fits);
  }
  return next;
}

std::vector<std::byte>& PendingRecords::place(uint64_t bytes, ByteBudget::Lease space) {
  rooms_.push_back(std::move(space));
  return room(bytes, bytes <= kSmallBytes ? kSharedBytes : bytes).bytes;
}

std::vector<std::byte>& PendingRecords::placeBefore(std::span<const std::byte> inPlace,
                                                    std::shared_ptr<const void> owner, uint64_t bytes,
                                                    ByteBudget::Lease space) {
  rooms_.push_back(std::move(space));
  Piece& piece = room(bytes, bytes);
  piece.inPlace = inPlace;
  piece.owner = std::move(owner);
  return piece.bytes;
}

void PendingRecords::clear(uint64_t spareBytesMax) {
  uint64_t kept = 0;
  for (const std::vector<std::byte>& spare : spare_) kept += spare.capacity();
  for (Piece& piece : pieces_) {
    const uint64_t capacity = piece.bytes.capacity();
    if (capacity < kSharedBytes || kept + capacity > spareBytesMax) continue;
    kept += capacity;
    piece.bytes.clear();
    spare_.push_back(std::move(piece.bytes));
  }
  pieces_.clear();
  rooms_.clear();
}

}  // namespace psd
