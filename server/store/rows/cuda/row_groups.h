#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace psd {

/// Puts gradients of the same row behind each other, so that one group of a device's threads can make a row's
/// steps in their order. Used again from batch to batch; owned by one thread at a time.
class RowGroups {
 public:
  /// Takes the rows of some gradients; kNoRow is passed over.
  void make(std::span<const uint32_t> rows);

  /// Each row once, in the order in which they first come.
  std::span<const uint32_t> rows() const { return rows_; }
  /// By row, how many gradients are those of it and of the rows before.
  std::span<const uint32_t> ends() const { return ends_; }
  /// Which of the gradients given come one after the other: a row's own together, in their order.
  std::span<const uint32_t> order() const { return order_; }

 private:
  /// A place in the hash table; of another batch if it has another stamp.
  struct Place {
    uint32_t stamp = 0, row = 0, group = 0;
  };

  /// The row's index in rows_, into which it goes if it is not there.
  uint32_t groupOf(uint32_t row);

  std::vector<Place> places_;  // a power of two of them, at most half of them used
  uint32_t stamp_ = 0;
  std::vector<uint32_t> rows_, ends_, order_, groups_;
};

}  // namespace psd
