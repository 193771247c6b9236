#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace psd {

/// Compute time per sample: the median over the newest steps, so that a single outlier has no effect. The
/// first steps, in which memory is allocated and kernels are chosen, do not count. Owned by one thread.
class SamplePace {
 public:
  static constexpr size_t kWarmUpSteps = 2;
  static constexpr size_t kWindow = 5;
  static constexpr size_t kStepsMin = 3;  ///< minimum number of steps for an estimate

  /// Adds a finished step.
  void add(uint32_t samples, double seconds) {
    if (++steps_ <= kWarmUpSteps) return;
    newest_[(steps_ - kWarmUpSteps - 1) % kWindow] = seconds / samples;
  }
  /// 0 as long as there is no estimate.
  double sampleSeconds() const {
    const size_t count = std::min(steps_, kWarmUpSteps + kWindow) - std::min(steps_, kWarmUpSteps);
    if (count < kStepsMin) return 0;
    auto sorted = newest_;
    const auto middle = sorted.begin() + count / 2;
    std::nth_element(sorted.begin(), middle, sorted.begin() + count);
    return *middle;
  }

 private:
  size_t steps_ = 0;
  std::array<double, kWindow> newest_{};
};

}  // namespace psd
