#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/dataset/random.h"

namespace psd {

/// Draws numbers from 0 with probabilities of about k^−1.05. Works in octaves, each 2^−0.05 times as likely
/// as the previous one, so that the draws are the same on every machine. Immutable, so thread-safe.
class Zipf {
 public:
  /// Draws are below `count`, which is at least 1.
  explicit Zipf(uint32_t count) : count_(count) {
    constexpr double kRatio = 0.9659363289248456;  // 2^−0.05
    double weight = 1, sum = 0;
    for (uint64_t begin = 1; begin <= count; begin *= 2, weight *= kRatio) {
      const auto filled = static_cast<double>(std::min<uint64_t>(begin, count - begin + 1));
      sum += weight * filled / static_cast<double>(begin);
      octaves_.push_back(sum);
    }
    for (double& octave : octaves_) octave *= 0x1p32 / sum;
  }

  uint32_t draw(Random& random) const {
    const auto point = static_cast<double>(random.next() >> 32);
    const auto octave =
        std::min<size_t>(static_cast<size_t>(std::ranges::upper_bound(octaves_, point) - octaves_.begin()),
                         octaves_.size() - 1);
    const uint32_t begin = 1u << octave;
    return begin - 1 + random.below(std::min(begin, count_ - begin + 1));
  }

 private:
  const uint32_t count_;
  std::vector<double> octaves_;  // cumulative: draws out of 2^32 that fall into this or an earlier octave
};

}  // namespace psd
