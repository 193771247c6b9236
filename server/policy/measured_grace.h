#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "common/types/ids.h"

namespace psd {

/// How long a round that has its quorum had best wait for a trainer that is missing: what such trainers have
/// taken before, from the quorum until what they pushed was here. It is the mean and four times the deviation
/// of these times, averaged as TCP does with round trips (Jacobson 1988; RFC 6298), and at most a limit.
/// That is also given while nobody was missing yet; who never was is given what the slowest other takes.
/// Pure: no threads, locks or clocks. Owned by whoever serialises the calls; times must not go back.
class MeasuredGrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit MeasuredGrace(Duration most) : most_(most) {}

  /// A round has its quorum without the trainer.
  void missing(SessionId session, TimePoint now) { missing_.try_emplace(session, now); }
  /// Something that the trainer pushed is here, whether it is in time or not.
  void came(SessionId session, TimePoint now);
  /// The trainer is gone.
  void forget(SessionId session);
  Duration of(SessionId session) const;

 private:
  struct Estimate {
    double mean = 0, deviation = 0;  ///< in seconds
  };

  static double secondsOf(const Estimate& estimate) { return estimate.mean + 4 * estimate.deviation; }

  const Duration most_;
  std::map<SessionId, TimePoint> missing_;   // since when
  std::map<SessionId, Estimate> estimates_;  // of those that were missing before
};

}  // namespace psd
