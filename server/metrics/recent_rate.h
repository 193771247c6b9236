#pragma once

#include <cstdint>
#include <deque>

namespace psd {

/// Rate of a counter over the last ten seconds. Owned by one thread.
class RecentRate {
 public:
  /// Must be called at least once a second. `nowMs`: of a monotonic clock.
  void note(uint64_t count, uint64_t nowMs) {
    if (!noted_.empty() && nowMs < noted_.back().ms + kStepMs) return;
    noted_.push_back({nowMs, count});
    while (noted_.size() > 1 && noted_[1].ms + kSpanMs <= nowMs) noted_.pop_front();
  }

  double perSecond(uint64_t count, uint64_t nowMs) const {
    if (noted_.empty() || nowMs <= noted_.front().ms || count < noted_.front().count) return 0;
    return 1000 * static_cast<double>(count - noted_.front().count) /
           static_cast<double>(nowMs - noted_.front().ms);
  }

 private:
  static constexpr uint64_t kStepMs = 500, kSpanMs = 10'000;
  struct Noted {
    uint64_t ms = 0, count = 0;
  };
  std::deque<Noted> noted_;  // oldest first; the first is at or before the start of the window
};

}  // namespace psd
