#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/budget/byte_budget.h"

namespace psd {

/// Log records on their way to disk: contiguous in pieces of memory that do not move when a record is
/// appended. Used by one thread at a time.
class PendingRecords {
 public:
  using Piece = std::vector<std::byte>;

  /// The piece to which a record of `bytes` bytes must be appended. `space`: the record's share of the
  /// budget, held until the record is written.
  Piece& place(uint64_t bytes, ByteBudget::Lease space);
  bool empty() const { return pieces_.empty(); }
  /// The pieces in order; each holds whole records.
  std::vector<Piece>& pieces() { return pieces_; }
  /// Drops all records. Keeps at most this much of their memory, so that appending does not fault in new
  /// pages.
  void clear(uint64_t spareBytesMax);
  void swap(PendingRecords& other) noexcept {
    pieces_.swap(other.pieces_);
    spare_.swap(other.spare_);
    rooms_.swap(other.rooms_);
  }

 private:
  std::vector<Piece> pieces_, spare_;
  std::vector<ByteBudget::Lease> rooms_;
};

}  // namespace psd
