#include "server/checkpoint/pending_records.h"

#include <algorithm>
#include <utility>

#include "server/store/staging_pool.h"

namespace psd {
namespace {

constexpr uint64_t kSmallBytes = uint64_t{64} << 10;  // records up to this size share a piece
constexpr uint64_t kSharedBytes = 4 * kSmallBytes;    // size of a shared piece

}  // namespace

std::vector<std::byte>& PendingRecords::place(uint64_t bytes, ByteBudget::Lease space) {
  rooms_.push_back(std::move(space));
  if (!pieces_.empty() && pieces_.back().rest.empty()) {
    std::vector<std::byte>& last = pieces_.back().bytes;
    if (last.capacity() - last.size() >= bytes) return last;
  }
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const std::vector<std::byte>& spare) {
    return spare.capacity() >= bytes;
  });
  std::vector<std::byte>& next = pieces_.emplace_back().bytes;
  if (fits == spare_.end()) {
    next.reserve(bytes <= kSmallBytes ? kSharedBytes : bytes);
  } else {
    next = std::move(*fits);
    spare_.erase(fits);
  }
  return next;
}

void PendingRecords::endWith(std::span<const std::byte> rest, std::shared_ptr<const void> owner) {
  StagingPool::transfer(owner);
  pieces_.back().rest = rest;
  pieces_.back().owner = std::move(owner);
}

void PendingRecords::clear(uint64_t spareBytesMax) {
  uint64_t kept = 0;
  for (const std::vector<std::byte>& spare : spare_) kept += spare.capacity();
  for (Piece& piece : pieces_) {
    if (kept + piece.bytes.capacity() > spareBytesMax) continue;
    kept += piece.bytes.capacity();
    piece.bytes.clear();
    spare_.push_back(std::move(piece.bytes));
  }
  pieces_.clear();
  rooms_.clear();
}

}  // namespace psd
