#pragma once

#include <cstdint>
#include <deque>

namespace psd {

/// Rate of a counter over the last ten seconds. Owned by one thread.
class RecentRate {
 public:
  /// Must be called at least once a second. `nowMs`: of a monotonic clock.
  void note(uint64_t count, uint64_t nowMs) {
    if (!samples_.empty() && nowMs < samples_.back().ms + kStepMs) return;
    samples_.push_back({nowMs, count});
    while (samples_.size() > 1 && samples_[1].ms + kSpanMs <= nowMs) samples_.pop_front();
  }

  double perSecond(uint64_t count, uint64_t nowMs) const {
    if (samples_.empty() || nowMs <= samples_.front().ms || count < samples_.front().count) return 0;
    return 1000 * static_cast<double>(count - samples_.front().count) /
           static_cast<double>(nowMs - samples_.front().ms);
  }

 private:
  static constexpr uint64_t kStepMs = 500, kSpanMs = 10'000;
  struct Sample {
    uint64_t ms = 0, count = 0;
  };
  std::deque<Sample> samples_;  // oldest first; the first is at or before the start of the window
};

}  // namespace psd
