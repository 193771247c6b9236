#pragma once

#include <chrono>
#include <deque>
#include <mutex>

#include <kj/async.h>

namespace psd {

/// A first-come, first-served lock that is waited for with a promise, so that no event loop ever
/// blocks, and that can be held while a device works. Thread-safe; outlives its guards and waiters.
class ShardLock {
 public:
  /// Holds the lock; gives it to the next waiter when destroyed, on any thread. Movable.
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

    /// How long the next in line has been waiting for this guard; zero: nobody does.
    std::chrono::nanoseconds delays() const { return lock_->nextWaits(); }

   private:
    friend class ShardLock;
    explicit Guard(ShardLock* lock) : lock_(lock) {}
    ShardLock* lock_;
  };

  /// Resolves, on the calling thread's event loop, once the caller holds the lock. A dropped
  /// promise gives up the place in the queue.
  kj::Promise<Guard> acquire();

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    kj::Own<kj::CrossThreadPromiseFulfiller<Guard>> fulfiller;
    Clock::time_point since;
  };

  void release();
  std::chrono::nanoseconds nextWaits() const;

  mutable std::mutex mutex_;  // guards what follows for a few instructions; never held while waiting
  bool held_ = false;
  Clock::time_point handedOn_;  // to who had waited for it
  std::deque<Waiter> waiters_;
};

}  // namespace psd
