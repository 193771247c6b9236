#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/policy/sync_rounds.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::testing {

/// A clock that jumps from one event to the next. Owned by one thread.
class VirtualTime {
 public:
  TimePoint now() const { return now_; }
  void after(std::chrono::milliseconds delay, std::function<void()> event) {
    events_.emplace(now_ + delay, std::move(event));
  }
  /// Runs until no event is left, and calls `check` after each; false after too many events.
  bool run(
      size_t eventsMax, const std::function<void()>& check = [] {}) {
    for (size_t i = 0; i < eventsMax && !events_.empty(); i++) {
      auto next = events_.extract(events_.begin());
      now_ = next.key();
      next.mapped()();
      check();
    }
    return events_.empty();
  }

 private:
  TimePoint now_{};
  std::multimap<TimePoint, std::function<void()>> events_;  // of one moment: as they were added
};

/// Runs `schedule(random)` for seeds 1 … `count`. PSD_SIMULATION_TIMES=K runs K times as many,
/// PSD_SIMULATION_SCHEDULES=N at most N, PSD_SIMULATION_SEED=S the one that a failure named.
template <class Schedule>
void runSchedules(uint64_t count, Schedule schedule) {
  uint64_t first = 1;
  if (const char* times = std::getenv("PSD_SIMULATION_TIMES")) count *= std::stoull(times);
  if (const char* most = std::getenv("PSD_SIMULATION_SCHEDULES"))
    count = std::min<uint64_t>(count, std::stoull(most));
  if (const char* one = std::getenv("PSD_SIMULATION_SEED")) {
    first = std::stoull(one);
    count = 1;
  }
  for (uint64_t seed = first; seed < first + count; seed++) {
    INFO("to replay: PSD_SIMULATION_SEED=" << seed);
    Random random(seed);
    schedule(random);
  }
}

}  // namespace psd::testing
