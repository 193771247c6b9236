#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace psd {

/// How long a trainer computes for one sample: the median over its newest steps, so that one that something
/// held up changes nothing. Its first steps, in which memory is got and kernels are chosen, do not count.
/// Owned by one thread.
class SamplePace {
 public:
  static constexpr size_t kWarmUpSteps = 2;
  static constexpr size_t kNewest = 5;
  static constexpr size_t kLeast = 3;  ///< steps that make it known

  /// A step is over.
  void add(uint32_t samples, double seconds) {
    if (++steps_ <= kWarmUpSteps) return;
    newest_[(steps_ - kWarmUpSteps - 1) % kNewest] = seconds / samples;
  }
  /// 0 while it is not known.
  double sampleSeconds() const {
    const size_t count = std::min(steps_, kWarmUpSteps + kNewest) - std::min(steps_, kWarmUpSteps);
    if (count < kLeast) return 0;
    auto sorted = newest_;
    const auto middle = sorted.begin() + count / 2;
    std::nth_element(sorted.begin(), middle, sorted.begin() + count);
    return *middle;
  }

 private:
  size_t steps_ = 0;
  std::array<double, kNewest> newest_{};
};

}  // namespace psd
