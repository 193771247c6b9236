#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "common/types/ids.h"

namespace psd {

/// How many steps learners of different speed take before they push, so that all push about as often: of the
/// period H learner m takes H_m = ⌊H · speed_m / speed_max⌋, at least 1 (Dynamic Local Updates; Liu,
/// Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato 2024). Speeds are those of each learner's newest
/// push. Pure: no threads, locks or clocks. Owned by whoever serialises the calls.
class LearnerPaces {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit LearnerPaces(uint64_t period) : period_(period) {}

  /// A learner has parameters to begin its steps with.
  void begins(SessionId session, TimePoint now) { learners_[session].begun = now; }
  /// It pushes what it came to since it began, in so many steps.
  void pushes(SessionId session, uint32_t steps, TimePoint now);
  void leave(SessionId session) { learners_.erase(session); }

  /// H_m; the whole period while the learner's speed, or anybody else's, is not known.
  uint64_t stepsOf(SessionId session) const;
  /// When a learner that has begun is to be told to push: in the midst of its last step. Nothing: it takes
  /// the whole period. One whose speed is not known has the time that the fastest one takes for a period.
  std::optional<TimePoint> dueAt(SessionId session) const;

 private:
  struct Learner {
    std::optional<TimePoint> begun;
    double speed = 0;  // steps per second; 0: not known
  };
  double fastest() const;

  const uint64_t period_;
  std::map<SessionId, Learner> learners_;
};

}  // namespace psd
