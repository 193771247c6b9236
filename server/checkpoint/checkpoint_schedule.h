#pragma once

#include <algorithm>
#include <cstdint>

namespace psd {

/// When the next checkpoint is due. Pure: time, in seconds from any beginning, and the number of updates are
/// passed in. Owned by one thread.
class CheckpointSchedule {
 public:
  struct Terms {
    double everySeconds = 0;    ///< 0: not by time
    uint64_t everyUpdates = 0;  ///< 0: not by updates
  };

  explicit CheckpointSchedule(Terms terms) : terms_(terms) {}

  /// Counting begins: the values as they are now are safe, or new.
  void start(double now, uint64_t updates) { succeeded(now, updates); }

  /// True if a checkpoint is due. Without updates since the last one there is nothing to save; but one that
  /// failed is tried again in any case, as a log may wait for it.
  bool due(double now, uint64_t updates) const {
    if (failures_ > 0) return now >= retryAt_;
    if (updates == savedUpdates_) return false;
    const bool byTime = terms_.everySeconds > 0 && now >= savedAt_ + terms_.everySeconds;
    const bool byUpdates = terms_.everyUpdates > 0 && updates >= savedUpdates_ + terms_.everyUpdates;
    return byTime || byUpdates;
  }

  void succeeded(double now, uint64_t updates) {
    savedAt_ = now;
    savedUpdates_ = updates;
    failures_ = 0;
  }
  /// The next try comes after 1, 2, 4, … seconds, a minute at most.
  void failed(double now) {
    retryAt_ = now + static_cast<double>(std::min<uint64_t>(1ull << std::min<uint64_t>(failures_, 6), 60));
    failures_++;
  }
  /// How many tries in a row have failed.
  uint64_t failures() const { return failures_; }
  bool unsaved(uint64_t updates) const { return updates != savedUpdates_; }

 private:
  const Terms terms_;
  double savedAt_ = 0;
  uint64_t savedUpdates_ = 0;
  double retryAt_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace psd
