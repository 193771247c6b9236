#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <kj/async.h>

#include "server/membership/trainer.h"
#include "server/store/parameter_block.h"

namespace psd {

/// Keeps the pushes of a trainer to a block in their order where these are recorded: what a restarted daemon
/// knows of a trainer's pushes, and what it tells of those that come again, takes that for granted. Waiting
/// for room in the log, or for a lock that others share, alone does not keep it. Thread-safe.
class PushTurns {
 public:
  /// Its trainer's next push to the block waits as long as this lives. Empty for a trainer that is not in.
  struct Turn {
    std::shared_ptr<ShardLock> lock;
    std::optional<ShardLock::Guard> guard;  // behind the lock, so that it goes first
  };

  void join(SessionId session);
  void leave(SessionId session);
  /// Resolves, on the calling event loop, once every Turn that was asked for before, for pushes of the
  /// trainer to the block, is gone.
  kj::Promise<Turn> next(SessionId session, const ParameterBlock& block);

 private:
  using OfBlocks = std::map<ShardId, std::shared_ptr<ShardLock>>;

  std::mutex mutex_;  // guards what follows, for few instructions
  std::map<SessionId, OfBlocks> trainers_;
};

}  // namespace psd
