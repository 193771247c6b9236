#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace psd {

/// Memory budget of all embedding tables of a model, shared by all row shards. Thread-safe.
class TableBudget {
 public:
  static std::shared_ptr<TableBudget> make(uint64_t limit) { return std::make_shared<TableBudget>(limit); }
  explicit TableBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  void setLimit(uint64_t bytes) { limit_ = bytes; }
  uint64_t taken() const { return taken_; }
  /// Reserves `bytes` if the limit allows; always succeeds for 0 bytes.
  bool take(uint64_t bytes) {
    if (bytes == 0) return true;
    uint64_t taken = taken_;
    do {
      if (taken > limit_ || bytes > limit_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  /// Replaces a shard's reservation of `before` bytes by `now` bytes, ignoring the limit.
  void change(uint64_t before, uint64_t now) { taken_ += now - before; }

 private:
  std::atomic<uint64_t> limit_, taken_{0};
};

}  // namespace psd
