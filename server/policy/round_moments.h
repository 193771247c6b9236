#pragma once

#include <chrono>
#include <cstdint>

#include "server/store/shard_lock.h"

namespace psd {

/// What several daemons call the state after one of their rounds: that of the contribution of its lowest
/// rank, of those that are not late. So they agree although other trainers may have joined at different
/// rounds of each, or were late at some. It is the state that the trainer of that rank pulls next. A value
/// type.
struct RoundMoment {
  /// The number by which all daemons of a model know the round: 1 + the version of the first shard of daemon
  /// 0 that the gradient was computed from. A trainer pulls all parts before it pushes, and sends the number
  /// to all daemons with the push (PushHead.leadRound in the schema, 0 from a trainer that does not know it),
  /// so it is the same for all of them when their own counts of rounds differ.
  uint64_t number = 0;
  /// See momentIdOf(): rounds of one number, such as one that was made again after a crash, differ in it.
  uint64_t id = 0;
  bool operator==(const RoundMoment&) const = default;
};

/// The id of a moment, from the contribution that names it. Never 0.
uint64_t momentIdOf(uint32_t rank, uint64_t incarnation, uint64_t step);

/// Receives the moments of a daemon that serves a part of a model. Thread-safe.
class RoundMoments {
 public:
  virtual ~RoundMoments() = default;
  /// The parameter group has applied a round. It applies no other while `applying` is held.
  virtual void applied(uint32_t group, RoundMoment moment, ShardLock::Guard applying) = 0;
  /// The parameter group has applied a round that its trainers do not name.
  virtual void unnamed(uint32_t group) = 0;
  /// Called about every 20 ms: releases a group that is held for too long.
  virtual void expire(std::chrono::steady_clock::time_point now) = 0;
};

}  // namespace psd
