#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/budget/byte_budget.h"

namespace psd {

/// Log records on their way to disk or to a standby, in pieces of memory that do not move when a record is
/// appended. Used by one thread at a time.
class PendingRecords {
 public:
  /// Consecutive whole records: `bytes`, then `rest`, the end of the last one, which lies in memory of its
  /// own.
  struct Piece {
    std::vector<std::byte> bytes;
    std::span<const std::byte> rest = {};
    std::shared_ptr<const void> owner = {};  ///< of `rest`

    uint64_t size() const { return bytes.size() + rest.size(); }
    /// The next bytes from `at` on that are contiguous; `at` is less than size().
    std::span<const std::byte> from(uint64_t at) const {
      if (at < bytes.size()) return std::span(bytes).subspan(at);
      return rest.subspan(at - bytes.size());
    }
  };

  /// Where a record of `bytes` bytes must be appended. `space`: the record's share of the budget, held until
  /// the record is written.
  std::vector<std::byte>& place(uint64_t bytes, ByteBudget::Lease space);
  /// Completes the newest record by `rest`, whose size is a multiple of 8, in place: `owner` keeps it until
  /// the record is written.
  void endWith(std::span<const std::byte> rest, std::shared_ptr<const void> owner);
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
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::byte>> spare_;
  std::vector<ByteBudget::Lease> rooms_;
};

}  // namespace psd
