#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include <kj/async.h>

namespace psd {

/// A FIFO lock that is acquired with a promise, so that it never blocks an event loop, and that can be held
/// across device operations. Exclusive or shared. Thread-safe; must outlive its guards and waiters.
class ShardLock {
 public:
  /// Holds the lock; its destructor, on any thread, passes the lock to the next waiter. Movable.
  class Guard {
   public:
    Guard(Guard&& other) noexcept : lock_(other.lock_) { other.lock_ = nullptr; }
    Guard& operator=(Guard&& other) noexcept {
      std::swap(lock_, other.lock_);
      return *this;
    }
    ~Guard() {
      if (lock_ != nullptr) lock_->release();
    }

    /// How long the next waiter has waited for this guard; zero: there is no waiter.
    std::chrono::nanoseconds nextWaiterDelay() const { return lock_->nextWaiterDelay(); }

   private:
    friend class ShardLock;
    explicit Guard(ShardLock* lock) : lock_(lock) {}
    ShardLock* lock_;
  };

  /// Acquires the lock exclusively. Resolves on the calling thread's event loop. Dropping the promise leaves
  /// the queue.
  kj::Promise<Guard> acquire() { return acquire(Mode::alone); }
  /// Acquires the lock shared. Resolves on the calling thread's event loop. Dropping the promise leaves the
  /// queue.
  kj::Promise<Guard> acquireShared() { return acquire(Mode::shared); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Mode { alone, shared };
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Guard>>;
  struct Waiter {
    Fulfiller fulfiller;
    Mode mode;
    Clock::time_point since;
  };

  kj::Promise<Guard> acquire(Mode mode);
  void release();
  /// Grants the lock to the next waiter and, if that one shares, to the sharing waiters directly behind it.
  /// The mutex must be held and the lock free.
  std::vector<Fulfiller> grantNext();
  std::chrono::nanoseconds nextWaiterDelay() const;

  mutable std::mutex mutex_;  // guards all below; held for a few instructions only
  size_t holders_ = 0;
  Mode mode_ = Mode::alone;      // of the current holders
  Clock::time_point grantedAt_;  // when the lock was last granted to waiters
  std::deque<Waiter> waiters_;
};

}  // namespace psd
