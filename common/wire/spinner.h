#pragma once

#include <chrono>

#include <kj/async.h>

namespace psd::wire {

/// Keeps an event loop's thread awake for a short time after each message, looking for the next one, before
/// it sleeps. Waking a thread that sleeps costs the sender an interrupt to another core and the sleeper the
/// way out of that core's idle state, on virtual machines more than the call itself; a message that finds its
/// reader awake costs neither. Between looks the core is offered to whoever else wants it (sched_yield), but
/// where all cores compute this takes time from them. docs/performance.md measures small calls with it and
/// without. Owned by the loop's thread.
class Spinner {
 public:
  /// `time` zero: never. `port` outlives it.
  Spinner(kj::EventPort& port, std::chrono::microseconds time) : port_(port), time_(time) {}
  KJ_DISALLOW_COPY(Spinner);

  /// A message came or went: the next may be near.
  void touch();
  /// Sleeps from now on. Before the loop ends.
  void stop();

 private:
  kj::Promise<void> spin();

  kj::EventPort& port_;
  std::chrono::microseconds time_;
  std::chrono::steady_clock::time_point until_;
  bool spinning_ = false;
  kj::Maybe<kj::Promise<void>> task_;  // the last spell of spinning
};

}  // namespace psd::wire
