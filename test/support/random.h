#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace psd::testing {

/// Random choices determined by a seed. Tests print the seed with INFO. Owned by one thread.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// A number from min to max, both included.
  uint64_t between(uint64_t min, uint64_t max) {
    return std::uniform_int_distribution<uint64_t>(min, max)(engine_);
  }
  size_t below(size_t count) { return between(0, count - 1); }
  bool oneIn(uint64_t times) { return between(1, times) == 1; }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

/// Values with mean 0 and variance 1.
inline std::vector<float> normalValues(size_t count, uint64_t seed) {
  Random random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random.engine());
  return values;
}

}  // namespace psd::testing
