#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// How long a call that other trainers may delay waits before it is reported.
inline constexpr std::chrono::milliseconds kLongWait{3'000};

/// Error of a call whose wait ClientOptions::keepWaiting has ended; the call itself may continue.
inline Error waitEndedError() { return {ErrorCode::interrupted, "the wait for the call was ended"}; }

/// The lock of a client's state. A call enters it, and leaves it while it waits for answers or calls back, so
/// that other threads can make calls meanwhile. A call that must be alone, to join, to reconnect or to move,
/// excludes all that enter later, but not those that return from a wait. Calls from within a callback are
/// refused. Thread-safe.
class ClientLock {
 public:
  /// `keepWaiting`: see ClientOptions; may be null.
  explicit ClientLock(std::function<bool()> keepWaiting = nullptr) : keepWaiting_(std::move(keepWaiting)) {}

  enum class Turn {
    own,  ///< after threads that exclude others
    any,  ///< at once, to read state
  };
  /// Holds the lock.
  class Hold {
   public:
    explicit Hold(ClientLock& lock, Turn turn = Turn::own) : lock_(lock), status_(lock.enter(turn)) {}
    ~Hold() { lock_.leave(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    /// An Error: the lock is held, but the call must not proceed.
    const Status& status() const { return status_; }

   private:
    ClientLock& lock_;
    const Status status_;
  };
  /// Excludes other threads while the lock is held; may be nested.
  class Alone {
   public:
    explicit Alone(ClientLock& lock) : lock_(lock), outer_(lock.isAlone()), status_(lock.becomeAlone()) {}
    ~Alone() {
      if (!outer_ && status_.ok()) lock_.endAlone();
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;
    const Status& status() const { return status_; }

   private:
    ClientLock& lock_;
    const bool outer_;
    const Status status_;
  };

  // The following are called with the lock held.

  /// Leaves the lock until `readyWithin(time)`, which waits for up to `time`, returns true. `waitsLong`,
  /// which may be null, is called once the wait is long. False: keepWaiting has ended the wait.
  bool await(const std::function<bool(std::chrono::milliseconds)>& readyWithin,
             const std::function<void()>& waitsLong = nullptr);
  /// await() for a future.
  template <class Future>
  bool awaitFuture(const Future& future, const std::function<void()>& waitsLong = nullptr) {
    return await([&](auto time) { return future.wait_for(time) == std::future_status::ready; }, waitsLong);
  }
  /// Leaves the lock for `time`; false: keepWaiting has ended the pause.
  bool pause(std::chrono::milliseconds time);
  /// Leaves the lock until another thread has made `condition` true, which is evaluated with the lock held,
  /// and has called changed() or has let others in again.
  bool awaitChange(const std::function<bool()>& condition);
  void changed() { changed_.notify_all(); }
  /// Leaves the lock while `work` runs.
  template <class Work>
  auto outside(Work work) {
    const Outside outside(mutex_);
    return work();
  }
  /// Calls `callback`, which is the user's, on a thread that holds the lock, and leaves it meanwhile.
  template <class Callback>
  auto callBack(const Callback& callback) {
    const Outside outside(mutex_);
    return callBackOutside(callback);
  }
  /// Calls `callback`, which is the user's, on a thread that does not hold the lock.
  template <class Callback>
  auto callBackOutside(const Callback& callback) const {
    const WithinCallback within(*this);
    return callback();
  }
  /// Whether some thread excludes others.
  bool isExclusive() const { return alone_.has_value(); }
  /// Waits until no other thread excludes this one.
  Status awaitTurn();
  /// Number of threads that hold the lock, or wait for it or within a call.
  size_t threads() const { return threads_; }

 private:
  struct Outside {
    explicit Outside(std::mutex& mutex) : mutex(mutex) { mutex.unlock(); }
    ~Outside() { mutex.lock(); }
    std::mutex& mutex;
  };
  /// Marks this thread as within a callback.
  struct WithinCallback {
    explicit WithinCallback(const ClientLock& lock) : lock(lock) { innermost = this; }
    ~WithinCallback() { innermost = outer; }
    WithinCallback(const WithinCallback&) = delete;
    WithinCallback& operator=(const WithinCallback&) = delete;

    const ClientLock& lock;
    const WithinCallback* const outer = innermost;
    static inline thread_local const WithinCallback* innermost = nullptr;
  };

  Status enter(Turn turn);
  void leave();
  bool isAlone() const { return alone_ == std::this_thread::get_id(); }
  Status becomeAlone();
  void endAlone();
  bool isWithinCallback() const;
  bool keepWaiting() const { return !keepWaiting_ || callBackOutside(keepWaiting_); }

  const std::function<bool()> keepWaiting_;
  std::mutex mutex_;  // guards the client's state and the rest
  std::condition_variable changed_;
  std::optional<std::thread::id> alone_;  // the thread that excludes others
  size_t threads_ = 0;
};

}  // namespace psd
