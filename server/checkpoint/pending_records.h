#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/budget/byte_budget.h"

namespace psd {

/// Records of a log on their way to the disk: one after the other in pieces of memory, none of which moves
/// when another record comes. Used by one thread at a time.
class PendingRecords {
 public:
  using Piece = std::vector<std::byte>;

  /// The place at which a record of `bytes` is to be appended. `room`: the record's share of what may wait,
  /// until it is written.
  Piece& place(uint64_t bytes, ByteBudget::Lease room);
  bool empty() const { return pieces_.empty(); }
  /// The pieces in order; each holds whole records.
  std::vector<Piece>& pieces() { return pieces_; }
  /// Forgets all records. Keeps some of their memory, so that appending meets no fresh page.
  void clear();
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
