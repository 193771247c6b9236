#pragma once

#include <chrono>

#include <kj/async.h>

namespace psd::wire {

/// Keeps an event loop's thread awake for a short time after each message, polling for the next one, before
/// it sleeps. Waking a sleeping thread costs the sender an interrupt to another core and the sleeper the exit
/// from that core's idle state, on virtual machines more than the call itself; a message that finds its
/// reader awake costs neither. Between polls the thread offers the core to others (sched_yield), but when all
/// cores are busy this takes time from them. docs/reference/performance.md measures small calls with and
/// without it. Owned by the loop's thread.
class Spinner {
 public:
  /// `time` zero disables it. `port` outlives it.
  Spinner(kj::EventPort& port, std::chrono::microseconds time) : port_(port), time_(time) {}
  KJ_DISALLOW_COPY(Spinner);

  /// Called at each message sent or received: the next may follow soon.
  void touch();
  /// Disables spinning. Called before the loop ends.
  void stop();

 private:
  kj::Promise<void> spin();

  kj::EventPort& port_;
  std::chrono::microseconds time_;
  std::chrono::steady_clock::time_point until_;
  bool spinning_ = false;
  kj::Maybe<kj::Promise<void>> task_;  // the last period of spinning
};

}  // namespace psd::wire
