#pragma once

#include <atomic>
#include <cstdint>

namespace psd {

/// A count that only rises. Any thread may raise and read it; relaxed, since counts order nothing.
class Counter {
 public:
  using Value = uint64_t;

  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  Value value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// A number as it is now, which rises and falls. Any thread may change and read it; relaxed, like Counter.
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
