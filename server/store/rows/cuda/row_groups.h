#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace psd {

/// Groups gradients by row, so that one group of device threads can apply a row's steps in order. Reused from
/// batch to batch; owned by one thread at a time.
class RowGroups {
 public:
  /// Groups the gradients of these rows; kNoRow is skipped.
  void make(std::span<const uint32_t> rows);

  /// Each distinct row, in order of first occurrence.
  std::span<const uint32_t> rows() const { return rows_; }
  /// Per row, the number of gradients of this row and of the rows before it.
  std::span<const uint32_t> ends() const { return ends_; }
  /// Indices of the gradients in grouped order: those of one row are adjacent and in their given order.
  std::span<const uint32_t> order() const { return order_; }

 private:
  /// A slot of the hash table; free if its stamp is not the current batch's.
  struct Place {
    uint32_t stamp = 0, row = 0, group = 0;
  };

  /// The row's index in rows_; appends the row if it is missing.
  uint32_t groupOf(uint32_t row);

  std::vector<Place> places_;  // a power of two in size, at most half full
  uint32_t stamp_ = 0;
  std::vector<uint32_t> rows_, ends_, order_, groups_;
};

}  // namespace psd
