#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace psd {

/// Memory budget of all embedding tables of a model, shared by all row shards. Thread-safe.
class TableBytes {
 public:
  static std::shared_ptr<TableBytes> make(uint64_t most) { return std::make_shared<TableBytes>(most); }
  explicit TableBytes(uint64_t most) : most_(most) {}

  uint64_t most() const { return most_; }
  void setMost(uint64_t bytes) { most_ = bytes; }
  uint64_t taken() const { return taken_; }
  /// Reserves `bytes` if the limit allows; always succeeds for 0 bytes.
  bool take(uint64_t bytes) {
    if (bytes == 0) return true;
    uint64_t taken = taken_;
    do {
      if (taken > most_ || bytes > most_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  /// Replaces a shard's reservation of `before` bytes by `now` bytes, ignoring the limit.
  void change(uint64_t before, uint64_t now) { taken_ += now - before; }

 private:
  std::atomic<uint64_t> most_, taken_{0};
};

}  // namespace psd
