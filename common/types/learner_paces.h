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
/// push. The daemon tells learners by it, and a simulation in virtual time. Pure: no threads, locks or
/// clocks. Owned by whoever serialises the calls.
class LearnerPaces {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `midway`: learners are in the midst of their steps when they are first heard of, so that a first push
  /// tells nothing of their speed.
  explicit LearnerPaces(uint64_t period, bool midway = false) : period_(period), midway_(midway) {}

  /// A learner has parameters to begin its steps with, or asks once more in their midst.
  void begins(SessionId session, TimePoint now) {
    Learner& learner = learners_.try_emplace(session, Learner{.measured = !midway_}).first->second;
    if (!learner.begun) learner.begun = now;
  }
  /// It pushes what it came to since it began, in so many steps.
  void pushes(SessionId session, uint32_t steps, TimePoint now);
  void leave(SessionId session);

  /// H_m; the whole period while the learner's speed, or anybody else's, is not known.
  uint64_t stepsOf(SessionId session) const;
  /// When a learner that has begun is to be told to push: in the midst of its last step. Nothing: it takes
  /// the whole period. One whose speed is not known has the time that the fastest one takes for a period.
  std::optional<TimePoint> dueAt(SessionId session) const;

 private:
  struct Learner {
    std::optional<TimePoint> begun;
    bool measured = true;  // the next push tells of its speed
    double speed = 0;      // steps per second; 0: not known
  };
  void findFastest();

  const uint64_t period_;
  const bool midway_;
  std::map<SessionId, Learner> learners_;
  double fastest_ = 0;  // of their speeds
};

}  // namespace psd
