#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <kj/async.h>
#include <kj/timer.h>

namespace psd {

/// Interval of the heartbeats of psd move.
inline constexpr std::chrono::milliseconds kMoveHeartbeatInterval{2'000};

/// Monitors the heartbeats of the operator's command that performs a move: it may hang or be cut off while
/// its connection looks healthy. Owned by the control loop's thread, on which every method is called.
class CommandHeartbeats final {
 public:
  explicit CommandHeartbeats(kj::Timer& timer) : timer_(timer) {}

  /// Starts to monitor: calls `lost`, once, when heartbeats stop.
  void watch(std::function<void()> lost);
  void onHeartbeat() { missed_ = 0; }
  void end() { watched_++; }

 private:
  kj::Promise<void> keepWatching(uint64_t watched, std::function<void()> lost);

  kj::Timer& timer_;
  uint64_t watched_ = 0;  // a new number for each watch()
  // Counts checks, not time: after a stall of this daemon, pending heartbeats arrive before the limit.
  int missed_ = 0;
  kj::Promise<void> watching_ = kj::READY_NOW;
};

}  // namespace psd
