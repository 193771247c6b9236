#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "server/membership/roster.h"

namespace psd {

/// Expires trainers: one without a heartbeat for a lease, and one whose connection closed and that did not
/// return within the grace. Time in which the daemon itself was suspended (stopped, its machine asleep)
/// counts against no trainer. Pure, like Roster: time is set by advance().
class Leases {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Terms {
    Milliseconds lease;
    Milliseconds grace;  ///< 0: lost with the connection
  };

  explicit Leases(Terms terms) : terms_(terms) {}

  /// Longest interval between calls of advance(). A gap of more than four intervals counts as a suspension of
  /// the daemon.
  Milliseconds interval() const;
  /// `now`: a monotonic clock with an arbitrary origin.
  void advance(Milliseconds now);

  /// A trainer joined, sent a heartbeat, or reconnected: renews its lease in full.
  void grant(SessionId session);
  /// The trainer's connection closed: starts the grace, which repeated calls do not extend.
  void disconnected(SessionId session);
  /// Stops watching the session.
  void release(SessionId session) { held_.erase(session); }

  bool connected(SessionId session) const;
  /// Time until the trainer expires without a heartbeat; 0 for an unknown session.
  Milliseconds left(SessionId session) const;
  /// The expired sessions, in the order of joining.
  std::vector<SessionId> expired() const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  struct Term {
    Milliseconds ends;
    bool connected = true;
  };

  const Terms terms_;
  Milliseconds last_{0};   // newest time given to advance()
  bool begun_ = false;     // advance() was called
  Milliseconds awake_{0};  // time passed, without suspensions
  std::map<SessionId, Term> held_;
};

}  // namespace psd
