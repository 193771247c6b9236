#pragma once

#include <chrono>
#include <map>
#include <vector>

#include "server/membership/roster.h"

namespace psd {

/// Which trainers count as gone: a trainer that was not heard of for a lease, and one whose connection closed
/// and that did not come back within the grace. Time in which the daemon itself stood still (stopped, its
/// machine asleep) counts against no trainer. Pure, like Roster: time is what advance() says.
class Leases {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Terms {
    Milliseconds lease;
    Milliseconds grace;  ///< 0: gone with the connection
  };

  explicit Leases(Terms terms) : terms_(terms) {}

  /// How often advance() is to be called, at least. A gap of more than four times that is taken for a
  /// standstill of the daemon.
  Milliseconds interval() const;
  /// `now`: a clock that never goes back, from any beginning.
  void advance(Milliseconds now);

  /// A trainer joined, was heard of, or is connected again: a whole lease from now on.
  void grant(SessionId session);
  /// The trainer's connection closed: the grace begins, which repeated calls do not prolong.
  void disconnected(SessionId session);
  /// Stops watching the session.
  void release(SessionId session) { held_.erase(session); }

  bool connected(SessionId session) const;
  /// Time until the trainer counts as gone, unless it is heard of; 0 for a session that is not watched.
  Milliseconds left(SessionId session) const;
  /// The sessions of trainers that are gone by now, in the order of joining.
  std::vector<SessionId> expired() const;

 private:
  struct Term {
    Milliseconds ends;
    bool connected = true;
  };

  const Terms terms_;
  Milliseconds last_{0};   // newest time given to advance()
  bool begun_ = false;     // advance() was called
  Milliseconds awake_{0};  // time passed, standstills left out
  std::map<SessionId, Term> held_;
};

}  // namespace psd
