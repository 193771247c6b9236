#pragma once

#include <chrono>
#include <optional>

#include "trainer/client/attempts.h"

namespace psd {

/// Connections that break one right after the other, each before it was of any use: together they are one
/// fault, which lasts since the first of them. Pure but for the seed; owned by one thread.
class FaultRow {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FaultRow(uint64_t seed) : seed_(seed) {}

  /// A connection broke at `now`. Gives since when there has been nothing but faults.
  Clock::time_point broke(Clock::time_point now) {
    again_ = back_ && now - *back_ < kOfUse;
    if (!again_) {
      since_ = now;
      backoff_.emplace(seed_++);
    }
    return since_;
  }
  /// There is a connection again, at `now`.
  void back(Clock::time_point now) { back_ = now; }
  /// A call was answered over it.
  void answered() { back_.reset(); }

  /// Whether the connection that broke last was of no use.
  bool again() const { return again_; }
  /// How long to pause before there is another one.
  std::chrono::milliseconds pause() { return again_ ? backoff_->next() : std::chrono::milliseconds(0); }

 private:
  /// Who waits for others is not answered for long: a connection that stood was of use.
  static constexpr std::chrono::seconds kOfUse{1};

  uint64_t seed_;
  Clock::time_point since_;
  std::optional<Clock::time_point> back_;  // null: none since the newest answer
  bool again_ = false;
  std::optional<Backoff> backoff_;
};

}  // namespace psd
