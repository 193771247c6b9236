#pragma once

#include <chrono>
#include <optional>

#include "trainer/client/attempts.h"

namespace psd {

/// Groups consecutive faults: connections that break one after another, each before it was useful, count as
/// one fault that lasts since the first. Pure except for the seed; owned by one thread.
class FaultStreak {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FaultStreak(uint64_t seed) : seed_(seed) {}

  /// A connection broke at `now`. Returns the start of the current run of faults.
  Clock::time_point broke(Clock::time_point now) {
    again_ = back_ && now - *back_ < kUsefulAfter;
    if (!again_) {
      since_ = now;
      backoff_.emplace(seed_++);
    }
    return since_;
  }
  /// A new connection was established at `now`.
  void back(Clock::time_point now) { back_ = now; }
  /// A call was answered over it.
  void answered() { back_.reset(); }

  /// Whether the connection that broke last was useless.
  bool again() const { return again_; }
  /// How long to pause before the next attempt to connect.
  std::chrono::milliseconds pause() { return again_ ? backoff_->next() : std::chrono::milliseconds(0); }

 private:
  /// A connection that lasted this long was useful even without an answer: calls that wait for other trainers
  /// are unanswered for long.
  static constexpr std::chrono::seconds kUsefulAfter{1};

  uint64_t seed_;
  Clock::time_point since_;
  std::optional<Clock::time_point> back_;  // null: none since the newest answer
  bool again_ = false;
  std::optional<Backoff> backoff_;
};

}  // namespace psd
