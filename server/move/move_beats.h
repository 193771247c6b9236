#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <kj/async.h>
#include <kj/timer.h>

namespace psd {

/// Between two signs of life of psd move.
inline constexpr std::chrono::milliseconds kMoveBeat{2'000};

/// Whether the operator's command is there that makes a move: it may stand still, or be cut off, while its
/// connection looks well. Owned by the control loop's thread, on which every method is called.
class MoveBeats final {
 public:
  explicit MoveBeats(kj::Timer& timer) : timer_(timer) {}

  /// From now on silence counts as the command's end: then `lost` is called, once.
  void watch(std::function<void()> lost);
  void heard() { missed_ = 0; }
  void end() { watched_++; }

 private:
  kj::Promise<void> keepWatching(uint64_t watched, std::function<void()> lost);

  kj::Timer& timer_;
  uint64_t watched_ = 0;  // another number for each move
  // Looks in vain, and no times: where this daemon itself stood still, what was said meanwhile is heard soon.
  int missed_ = 0;
  kj::Promise<void> watching_ = kj::READY_NOW;
};

}  // namespace psd
