#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace psd {

/// The memory that the embedding tables of a model take, all row shards together, and how much they may take.
/// Thread-safe.
class TableBytes {
 public:
  static std::shared_ptr<TableBytes> make(uint64_t most) { return std::make_shared<TableBytes>(most); }
  explicit TableBytes(uint64_t most) : most_(most) {}

  uint64_t most() const { return most_; }
  void setMost(uint64_t bytes) { most_ = bytes; }
  uint64_t taken() const { return taken_; }
  /// Takes `bytes` more, if there is room for them; none are always to be had.
  bool take(uint64_t bytes) {
    if (bytes == 0) return true;
    uint64_t taken = taken_;
    do {
      if (taken > most_ || bytes > most_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  /// A shard takes so many bytes instead of `before`.
  void change(uint64_t before, uint64_t now) { taken_ += now - before; }

 private:
  std::atomic<uint64_t> most_, taken_{0};
};

}  // namespace psd
