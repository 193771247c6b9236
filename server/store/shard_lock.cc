#include "server/store/shard_lock.h"

#include <algorithm>

namespace psd {

kj::Promise<ShardLock::Guard> ShardLock::acquire(Mode mode) {
  std::lock_guard hold(mutex_);
  // A shared acquisition does not overtake waiters, so that exclusive ones are not starved.
  const bool joins = mode == Mode::shared && mode_ == Mode::shared && waiters_.empty();
  if (holders_ == 0 || joins) {
    mode_ = mode;
    holders_++;
    return Guard(this);
  }
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<Guard>();
  waiters_.push_back({kj::mv(waiter.fulfiller), mode, Clock::now()});
#ifdef PSD_SANITIZE_THREAD
  // kj passes the guard on inside its shared library, which is not instrumented: the mutex makes the order
  // visible to ThreadSanitizer.
  return waiter.promise.then([this](Guard guard) {
    std::lock_guard hold(mutex_);
    return guard;
  });
#else
  return kj::mv(waiter.promise);
#endif
}

void ShardLock::release() {
  // The guard travels with the promise: if the waiter has dropped its promise, destroying the undelivered
  // guard releases the lock again, and the next waiter gets it. Therefore outside the mutex.
  std::vector<Fulfiller> next;
  {
    std::lock_guard hold(mutex_);
    if (--holders_ == 0) next = grantNext();
  }
  for (Fulfiller& fulfiller : next) fulfiller->fulfill(Guard(this));
}

std::vector<ShardLock::Fulfiller> ShardLock::grantNext() {
  std::vector<Fulfiller> next;
  while (!waiters_.empty()) {
    const Mode mode = waiters_.front().mode;
    if (!next.empty() && (mode_ == Mode::alone || mode == Mode::alone)) break;
    mode_ = mode;
    next.push_back(kj::mv(waiters_.front().fulfiller));
    waiters_.pop_front();
  }
  holders_ = next.size();
  if (!next.empty()) grantedAt_ = Clock::now();
  return next;
}

std::chrono::nanoseconds ShardLock::nextWaiterDelay() const {
  const std::lock_guard hold(mutex_);
  if (waiters_.empty()) return std::chrono::nanoseconds(0);
  // The next waiter has waited for this guard since the lock was granted; before that it waited for earlier
  // guards.
  return Clock::now() - std::max(waiters_.front().since, grantedAt_);
}

}  // namespace psd
