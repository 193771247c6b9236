#include "server/store/shard_lock.h"

#include <algorithm>

namespace psd {

kj::Promise<ShardLock::Guard> ShardLock::acquire() {
  std::lock_guard hold(mutex_);
  if (!held_) {
    held_ = true;
    return Guard(this);
  }
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<Guard>();
  waiters_.push_back({kj::mv(waiter.fulfiller), Clock::now()});
#ifdef __SANITIZE_THREAD__
  // kj hands the guard over inside its shared library, which is not instrumented: the mutex shows the order.
  return waiter.promise.then([this](Guard guard) {
    std::lock_guard hold(mutex_);
    return guard;
  });
#else
  return kj::mv(waiter.promise);
#endif
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
    next = kj::mv(waiters_.front().fulfiller);
    waiters_.pop_front();
    handedOn_ = Clock::now();
  }
  next->fulfill(Guard(this));
}

std::chrono::nanoseconds ShardLock::nextWaits() const {
  const std::lock_guard hold(mutex_);
  if (waiters_.empty()) return std::chrono::nanoseconds(0);
  // The next waiter has waited for this guard since the lock was handed on; before that it waited for other
  // guards.
  return Clock::now() - std::max(waiters_.front().since, handedOn_);
}

}  // namespace psd
