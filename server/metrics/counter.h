#pragma once

#include <atomic>
#include <cstdint>

namespace psd {

/// A monotonic counter. Any thread may increment and read it; relaxed, as counts order nothing.
class Counter {
 public:
  using Value = uint64_t;

  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  Value value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// A current value that rises and falls. Any thread may change and read it; relaxed, like Counter.
class Gauge {
 public:
  using Value = uint64_t;

  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  void subtract(uint64_t amount = 1) { value_.fetch_sub(amount, std::memory_order_relaxed); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  Value value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace psd
