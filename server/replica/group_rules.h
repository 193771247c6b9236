#pragma once

#include <chrono>

namespace psd {

using TimePoint = std::chrono::steady_clock::time_point;

/// How a group is replicated. The times decide when something is tried, never what is safe. Immutable.
struct GroupRules {
  enum class Wait {
    standby,  ///< a push is answered once the standby in sync holds it: what was answered survives one daemon
    none,     ///< at once: a failover loses what was still under way to the standby
  };
  std::chrono::nanoseconds beat =
      std::chrono::milliseconds(50);  ///< how often the primary is heard, and tick() is called
  std::chrono::nanoseconds silence =
      std::chrono::milliseconds(300);  ///< of the primary, until its standby takes over; ≥ 4 beats
  std::chrono::nanoseconds alone =
      std::chrono::milliseconds(1500);  ///< silence of the standby, until it is removed; ≫ silence
  Wait wait = Wait::standby;
  /// How long nobody writes a plan that is gone, or was not there yet, but who served in it.
  std::chrono::nanoseconds absence{0};

  /// A gap between two calls of tick() from which on the daemon itself stood still (stopped, asleep), which
  /// counts against no peer.
  std::chrono::nanoseconds standstill() const { return 4 * beat; }
};

}  // namespace psd
