#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace psd::testing {

/// Random choices that a seed decides. Tests print the seed with INFO. Owned by one thread.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// Of min … max, both included.
  uint64_t between(uint64_t min, uint64_t max) {
    return std::uniform_int_distribution<uint64_t>(min, max)(engine_);
  }
  size_t below(size_t count) { return between(0, count - 1); }
  bool oneIn(uint64_t times) { return between(1, times) == 1; }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace psd::testing
