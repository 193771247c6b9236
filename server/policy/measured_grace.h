#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "common/types/ids.h"

namespace psd {

/// Estimates how long a round that has its quorum should wait for a missing trainer, from the delays between
/// quorum and arrival in earlier rounds. The estimate is the mean plus four times the deviation of these
/// delays, smoothed like TCP round-trip times (Jacobson 1988; RFC 6298) and capped at a limit. Without any
/// measurement the estimate is the limit; for a trainer without measurements it is the largest estimate of
/// the others. Pure: no threads, locks or clocks. Not thread-safe: the owner serializes the calls; times must
/// not decrease.
class MeasuredGrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit MeasuredGrace(Duration most) : limit_(most) {}

  /// A round has reached its quorum without the trainer.
  void missing(SessionId session, TimePoint now) { missing_.try_emplace(session, now); }
  /// A push of the trainer has arrived, late or not.
  void gradientArrived(SessionId session, TimePoint now);
  /// The trainer has departed.
  void forget(SessionId session);
  Duration of(SessionId session) const;

 private:
  struct Estimate {
    double mean = 0, deviation = 0;  ///< in seconds
  };

  static double secondsOf(const Estimate& estimate) { return estimate.mean + 4 * estimate.deviation; }

  const Duration limit_;
  std::map<SessionId, TimePoint> missing_;   // start of the wait
  std::map<SessionId, Estimate> estimates_;  // of trainers with a measurement
};

}  // namespace psd
