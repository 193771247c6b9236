#include "server/store/shard_lock.h"

#include <optional>

namespace psd {

kj::Promise<ShardLock::Guard> ShardLock::acquire() {
  std::lock_guard hold(mutex_);
  if (!held_) {
    held_ = true;
    return Guard(this);
  }
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<Guard>();
  waiters_.push_back(kj::mv(waiter.fulfiller));
  return kj::mv(waiter.promise);
}

void ShardLock::release() {
  // The guard travels with the promise: if its waiter has given up, destroying the undelivered
  // guard releases the lock again, and the next one gets it. That happens outside the mutex.
  kj::Own<kj::CrossThreadPromiseFulfiller<Guard>> next;
  {
    std::lock_guard hold(mutex_);
    if (waiters_.empty()) {
      held_ = false;
      return;
    }
    next = kj::mv(waiters_.front());
    waiters_.pop_front();
  }
  next->fulfill(Guard(this));
}

}  // namespace psd
