#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace psd {

/// How long to pause between attempts: twice as long each time up to a bound, less a random part of up to
/// half, so that many who lost the same peer do not all come back at once. Pure but for the seed; owned by
/// one thread.
class Backoff {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Backoff(Milliseconds first, Milliseconds most, uint64_t seed) : most_(most), next_(first), random_(seed) {}

  Milliseconds next() {
    const Milliseconds whole = next_;
    next_ = std::min(next_ * 2, most_);
    return Milliseconds(
        std::uniform_int_distribution<int64_t>((whole.count() + 1) / 2, whole.count())(random_));
  }

 private:
  const Milliseconds most_;
  Milliseconds next_;
  std::mt19937_64 random_;
};

}  // namespace psd
