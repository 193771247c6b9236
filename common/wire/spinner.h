#pragma once

#include <chrono>

#include <kj/async.h>

namespace psd::wire {

/// Keeps an event loop's thread awake for a short time after each message, looking for the next one, before
/// it sleeps. Waking a thread that sleeps costs the sender an interrupt to another core and the sleeper the
/// way out of that core's idle state: 10 to 100 µs, on virtual machines above all; a message that finds its
/// reader awake costs neither. Between looks the core is offered to whoever else wants it (sched_yield), so
/// what is spent is time in which the core had nothing to do. Owned by the loop's thread.
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
