#pragma once

#include <array>
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
  /// Consecutive whole records: `bytes`, then `inPlace`, the end of the last one, if it was not copied.
  struct Piece {
    std::vector<std::byte> bytes;
    std::span<const std::byte> inPlace = {};
    std::shared_ptr<const void> owner = {};  ///< of `inPlace`

    uint64_t size() const { return bytes.size() + inPlace.size(); }
    std::array<std::span<const std::byte>, 2> parts() const { return {bytes, inPlace}; }
    /// The contiguous bytes from `at` on; `at` is less than size().
    std::span<const std::byte> from(uint64_t at) const {
      if (at < bytes.size()) return std::span(bytes).subspan(at);
      return inPlace.subspan(at - bytes.size());
    }
  };

  /// Returns the memory to which the caller appends a record of `bytes` bytes. `space`: the record's share of
  /// the budget, held until the record is written.
  std::vector<std::byte>& place(uint64_t bytes, ByteBudget::Lease space);
  /// Returns the memory to which the caller appends the first `bytes` bytes of a record. Its other bytes,
  /// `inPlace`, are not copied: `owner` keeps them until the record is written. Their address and size are
  /// multiples of 8. `space`: as for place().
  std::vector<std::byte>& placeBefore(std::span<const std::byte> inPlace, std::shared_ptr<const void> owner,
                                      uint64_t bytes, ByteBudget::Lease space);
  bool empty() const { return pieces_.empty(); }
  /// The pieces, oldest records first.
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
  /// The piece in which there is room for `bytes` bytes; a new one has room for `atLeast`.
  Piece& room(uint64_t bytes, uint64_t atLeast);

  std::vector<Piece> pieces_;
  std::vector<std::vector<std::byte>> spare_;
  std::vector<ByteBudget::Lease> rooms_;
};

}  // namespace psd
