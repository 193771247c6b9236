#pragma once

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

   private:
    friend class ShardLock;
    explicit Guard(ShardLock* lock) : lock_(lock) {}
    ShardLock* lock_;
  };

  /// Resolves, on the calling thread's event loop, once the caller holds the lock. A dropped
  /// promise gives up the place in the queue.
  kj::Promise<Guard> acquire();

 private:
  void release();

  std::mutex mutex_;  // guards the two below for a few instructions; never held while waiting
  bool held_ = false;
  std::deque<kj::Own<kj::CrossThreadPromiseFulfiller<Guard>>> waiters_;
};

}  // namespace psd
