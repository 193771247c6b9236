#pragma once

#include <chrono>

namespace psd {

using TimePoint = std::chrono::steady_clock::time_point;

/// Parameters of replication. Times decide when something is tried, never what is safe. Immutable.
struct ReplicationRules {
  enum class Wait {
    standby,  ///< a push is answered once the standby in sync holds it: survives one daemon's loss
    none,     ///< immediately: a takeover loses what was in flight to the standby
  };
  std::chrono::nanoseconds beat =
      std::chrono::milliseconds(50);  ///< interval of the primary's heartbeats and of tick()
  std::chrono::nanoseconds silence =
      std::chrono::milliseconds(300);  ///< without a heartbeat of the primary until takeover; ≥ 4 beats
  std::chrono::nanoseconds alone =
      std::chrono::milliseconds(1500);  ///< without one of the standby until it is removed; ≫ silence
  Wait wait = Wait::standby;
  /// How long only a daemon that served in it may write a document that is gone or never existed.
  std::chrono::nanoseconds absence{0};

  /// A longer gap between two calls of tick() means that this daemon was suspended (stopped, asleep); that
  /// time counts against no peer.
  std::chrono::nanoseconds standstill() const { return 4 * beat; }
};

}  // namespace psd
