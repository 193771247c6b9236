#include "server/policy/push_turns.h"

#include <utility>

namespace psd {

void PushTurns::join(SessionId session) {
  const std::lock_guard hold(mutex_);
  trainers_[session];
}

void PushTurns::leave(SessionId session) {
  const std::lock_guard hold(mutex_);
  trainers_.erase(session);
}

kj::Promise<Result<PushAnswer>> PushTurns::inTurn(SessionId session, const ParameterBlock& block,
                                                  uint64_t bytes, Apply apply) {
  return next(session, block).then([&block, bytes, apply = kj::mv(apply)](Turn turn) mutable {
    return block.reserveLogSpace(bytes).then(kj::mv(apply)).attach(kj::mv(turn));
  });
}

kj::Promise<PushTurns::Turn> PushTurns::next(SessionId session, const ParameterBlock& block) {
  std::shared_ptr<ShardLock> lock;
  {
    const std::lock_guard hold(mutex_);
    const auto trainer = trainers_.find(session);
    if (trainer == trainers_.end()) return Turn();
    std::shared_ptr<ShardLock>& own = trainer->second[block.id()];
    if (!own) own = std::make_shared<ShardLock>();
    lock = own;
  }
  ShardLock& waited = *lock;
  return waited.acquire().then([lock = std::move(lock)](ShardLock::Guard guard) mutable {
    return Turn{std::move(lock), std::move(guard)};
  });
}

}  // namespace psd
