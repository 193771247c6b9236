#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "common/types/ids.h"

namespace psd {

/// How many steps learners of different speed take before they push, so that all push equally often: of the
/// period H learner m takes H_m = ⌊H · speed_m / speed_max⌋, at least 1 (Dynamic Local Updates; Liu,
/// Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato 2024). A learner's speed is that of its newest
/// push. Used by the daemon and by a simulation in virtual time. Pure: no threads, locks or clocks. The owner
/// serializes the calls.
class LearnerPaces {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `midway`: learners are in the middle of their steps when they first appear, so the first push says
  /// nothing about their speed.
  explicit LearnerPaces(uint64_t period, bool midway = false) : period_(period), midway_(midway) {}

  /// A learner has parameters to start its steps from, or calls again while it steps.
  void begins(SessionId session, TimePoint now) {
    Learner& learner = learners_.try_emplace(session, Learner{.measured = !midway_}).first->second;
    if (!learner.begun) learner.begun = now;
  }
  /// It pushes the result of `steps` steps since its start.
  void pushes(SessionId session, uint32_t steps, TimePoint now);
  void leave(SessionId session);

  /// H_m; the whole period while the speed of this learner, or of every other, is unknown.
  uint64_t stepsOf(SessionId session) const;
  /// When a learner that has started should be asked to push: in the middle of its last step. Empty: it takes
  /// the whole period. A learner of unknown speed gets the time of the fastest one's period.
  std::optional<TimePoint> dueAt(SessionId session) const;

 private:
  struct Learner {
    std::optional<TimePoint> begun;
    bool measured = true;  // the next push measures its speed
    double speed = 0;      // steps per second; 0: not known
  };
  void findFastest();

  const uint64_t period_;
  const bool midway_;
  std::map<SessionId, Learner> learners_;
  double fastest_ = 0;  // maximum speed
};

}  // namespace psd
