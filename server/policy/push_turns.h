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

/// Preserves the order of a trainer's pushes to a block if updates are recorded: a restarted daemon relies on
/// that order for what it knows of a trainer's pushes and for its answers to repeated ones. Waiting for log
/// space, or for a shared lock, does not preserve the order. Thread-safe.
class PushTurns {
 public:
  void join(SessionId session);
  void leave(SessionId session);

  using Apply = kj::Function<kj::Promise<Result<PushAnswer>>(ByteBudget::Lease space)>;
  /// Calls `apply` on the calling event loop once the trainer's earlier pushes to the block are done and the
  /// log has space for a gradient of `bytes`. The next push waits until the promise of `apply` resolves.
  /// Pushes of a trainer that is not joined are not ordered.
  kj::Promise<Result<PushAnswer>> inTurn(SessionId session, const ParameterBlock& block, uint64_t bytes,
                                         Apply apply);

 private:
  /// Blocks the trainer's next push to the block while it lives. Empty for a trainer that is not joined.
  struct Turn {
    std::shared_ptr<ShardLock> lock;
    std::optional<ShardLock::Guard> guard;  // declared after the lock: destroyed first
  };
  kj::Promise<Turn> next(SessionId session, const ParameterBlock& block);

  using OfBlocks = std::map<ShardId, std::shared_ptr<ShardLock>>;

  std::mutex mutex_;  // guards the members below; held briefly
  std::map<SessionId, OfBlocks> trainers_;
};

}  // namespace psd
