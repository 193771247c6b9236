#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <kj/async.h>
#include <kj/function.h>

#include "server/policy/update_policy.h"

namespace psd {

/// Keeps the pushes of a trainer to a block in their order where these are recorded: what a restarted daemon
/// knows of a trainer's pushes, and what it tells of those that come again, takes that for granted. Waiting
/// for room in the log, or for a lock that others share, alone does not keep it. Thread-safe.
class PushTurns {
 public:
  void join(SessionId session);
  void leave(SessionId session);

  using Apply = kj::Function<kj::Promise<Result<PushAnswer>>(ByteBudget::Lease room)>;
  /// Calls `apply`, on the calling event loop, when the trainer's pushes to the block before this one are
  /// done and a gradient of so many bytes has room in the log. The next push waits for what it gives. A
  /// trainer that is not in has its pushes in any order.
  kj::Promise<Result<PushAnswer>> inTurn(SessionId session, const ParameterBlock& block, uint64_t bytes,
                                         Apply apply);

 private:
  /// A trainer's next push to the block waits as long as this lives. Empty for one that is not in.
  struct Turn {
    std::shared_ptr<ShardLock> lock;
    std::optional<ShardLock::Guard> guard;  // behind the lock, so that it goes first
  };
  kj::Promise<Turn> next(SessionId session, const ParameterBlock& block);

  using OfBlocks = std::map<ShardId, std::shared_ptr<ShardLock>>;

  std::mutex mutex_;  // guards what follows, for few instructions
  std::map<SessionId, OfBlocks> trainers_;
};

}  // namespace psd
