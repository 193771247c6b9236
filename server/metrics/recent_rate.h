#pragma once

#include <cstdint>
#include <deque>

namespace psd {

/// How fast a counter has risen in the last ten seconds. Owned by one thread.
class RecentRate {
 public:
  /// To be called at least every second. `nowMs`: of a clock that only goes forward.
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
  std::deque<Noted> noted_;  // the newest last; the first is from the beginning of the span or before
};

}  // namespace psd
