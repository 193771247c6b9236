#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/local_steps.h"
#include "server/policy/parked_calls.h"

namespace psd {

/// The current state of the rounds. A value type.
struct RoundState {
  uint64_t open = 0;     ///< number of the open round
  bool closing = false;  ///< it has its quorum, and its grace period is running

  /// What to report to a trainer that computes for `round`; nullopt: nothing yet.
  std::optional<RoundDue> of(uint64_t round) const {
    if (round < open) return RoundDue::closed;
    return closing && round == open ? std::optional(RoundDue::closing) : std::nullopt;
  }
};

/// Parked roundDue() calls: notifies trainers that compute for a round when it is about to close or has
/// closed. At most one per session. Thread-safe.
class RoundWaits {
 public:
  /// Answers immediately if the round is closing or closed. Otherwise parks the call; a previous one of the
  /// session fails with ErrorCode::notReady.
  kj::Promise<Result<RoundDue>> add(SessionId session, uint64_t round, const RoundState& now);
  /// Answers the calls whose round is closing or closed.
  void notify(const RoundState& now);
  /// The trainer has departed: its call is answered with RoundDue::closed.
  void forget(SessionId session);
  /// Fails all parked and future calls with `why`.
  void end(const Error& why);

 private:
  std::mutex mutex_;  // guards the members below
  ParkedCalls<RoundDue> calls_;
  std::map<SessionId, uint64_t> rounds_;  // by session, of its newest call
};

}  // namespace psd
