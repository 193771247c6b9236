#include "server/store/shard_lock.h"

#include <algorithm>

namespace psd {

kj::Promise<ShardLock::Guard> ShardLock::acquire(Mode mode) {
  std::lock_guard hold(mutex_);
  // Who shares does not pass by who waits to be alone.
  const bool joins = mode == Mode::shared && mode_ == Mode::shared && waiters_.empty();
  if (holders_ == 0 || joins) {
    mode_ = mode;
    holders_++;
    return Guard(this);
  }
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<Guard>();
  waiters_.push_back({kj::mv(waiter.fulfiller), mode, Clock::now()});
#ifdef PSD_SANITIZE_THREAD
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
  // A guard travels with its promise: if its waiter has given up, destroying the undelivered guard releases
  // the lock again, and the next one gets it. That happens outside the mutex.
  std::vector<Fulfiller> next;
  {
    std::lock_guard hold(mutex_);
    if (--holders_ == 0) next = handOn();
  }
  for (Fulfiller& fulfiller : next) fulfiller->fulfill(Guard(this));
}

std::vector<ShardLock::Fulfiller> ShardLock::handOn() {
  std::vector<Fulfiller> next;
  while (!waiters_.empty()) {
    const Mode mode = waiters_.front().mode;
    if (!next.empty() && (mode_ == Mode::alone || mode == Mode::alone)) break;
    mode_ = mode;
    next.push_back(kj::mv(waiters_.front().fulfiller));
    waiters_.pop_front();
  }
  holders_ = next.size();
  if (!next.empty()) handedOn_ = Clock::now();
  return next;
}

std::chrono::nanoseconds ShardLock::nextWaits() const {
  const std::lock_guard hold(mutex_);
  if (waiters_.empty()) return std::chrono::nanoseconds(0);
  // The next waiter has waited for this guard since the lock was handed on; before that it waited for other
  // guards.
  return Clock::now() - std::max(waiters_.front().since, handedOn_);
}

}  // namespace psd
