#pragma once

#include <cstdint>

#include "common/types/split_mix.h"

namespace psd {

/// A pseudo-random generator: successive values of splitMix(). Owned by one thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  /// An independent stream per pair of seed and stream, also for neighbouring numbers.
  Random(uint64_t seed, uint64_t stream) : state_(Random(seed).next() ^ Random(~stream).next()) {}

  uint64_t next() {
    const uint64_t number = splitMix(state_);
    state_ += kSplitMixStep;
    return number;
  }

  /// Uniform in 0 … bound − 1; bound > 0. Multiply-shift: the bias is below bound / 2^32.
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(((next() >> 32) * bound) >> 32); }

 private:
  uint64_t state_;
};

}  // namespace psd
