#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include <kj/async.h>

namespace psd {

/// A first-come, first-served lock that is waited for with a promise, so that no event loop ever
/// blocks, and that can be held while a device works: by one alone, or by several who share it. Thread-safe;
/// outlives its guards and waiters.
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
  kj::Promise<Guard> acquire() { return acquire(Mode::alone); }
  /// Resolves, on the calling thread's event loop, once the caller holds the lock, together with others who
  /// share it. A dropped promise gives up the place in the queue.
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
  /// With the mutex held and nobody holding the lock: takes the next waiter out of the line, with those who
  /// share behind it where it shares, and gives them the lock.
  std::vector<Fulfiller> handOn();
  std::chrono::nanoseconds nextWaits() const;

  mutable std::mutex mutex_;  // guards what follows for a few instructions; never held while waiting
  size_t holders_ = 0;
  Mode mode_ = Mode::alone;     // in which it is held
  Clock::time_point handedOn_;  // to who had waited for it
  std::deque<Waiter> waiters_;
};

}  // namespace psd
