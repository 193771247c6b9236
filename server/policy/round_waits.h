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

/// How far rounds are. A value type.
struct RoundStanding {
  uint64_t open = 0;     ///< number of the open round
  bool closing = false;  ///< it has its quorum, and its grace runs

  /// How a round stands for who computes for it; nothing: there is no end in sight.
  std::optional<RoundDue> of(uint64_t round) const {
    if (round < open) return RoundDue::closed;
    return closing && round == open ? std::optional(RoundDue::closing) : std::nullopt;
  }
};

/// Trainers that compute for a round and are to be told when it closes; one wait of each at most.
/// Thread-safe.
class RoundWaits {
 public:
  /// Answered at once where there is something to tell. Else it waits, and a wait of the trainer's from
  /// before ends (ErrorCode::notReady).
  kj::Promise<Result<RoundDue>> add(SessionId session, uint64_t round, const RoundStanding& now);
  /// Tells those for whom it is time.
  void tell(const RoundStanding& now);
  /// A trainer is gone.
  void forget(SessionId session);
  /// Ends all waits, and those that are added after it.
  void end(const Error& why);

 private:
  std::mutex mutex_;  // guards what follows
  ParkedCalls<RoundDue> calls_;
  std::map<SessionId, uint64_t> rounds_;  // of those that wait, or did
};

}  // namespace psd
