#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <kj/async-io.h>
#include <kj/debug.h>

namespace psd::wire {

/// Stops a thread that talks to a daemon, whether it runs an event loop of its own or is between two of them.
/// Thread-safe.
class StopSignal {
 public:
  void stop() {
    {
      const std::lock_guard hold(mutex_);
      stopped_ = true;
      KJ_IF_MAYBE (waiting, waiting_) (*waiting)->fulfill();
      waiting_ = nullptr;
    }
    condition_.notify_one();
  }
  bool stopped() const {
    const std::lock_guard hold(mutex_);
    return stopped_;
  }
  /// Waits for `time` or until stop(). Returns false if stop() was called.
  bool pause(std::chrono::milliseconds time) {
    std::unique_lock hold(mutex_);
    return !condition_.wait_for(hold, time, [this] { return stopped_; });
  }

  /// The signal in an event loop of the thread to stop, one at a time. Promises wrapped by it fail with
  /// DISCONNECTED once stop() was called.
  class InLoop {
   public:
    /// `signal` and `timer` outlive it.
    InLoop(StopSignal& signal, kj::Timer& timer) : signal_(signal), timer_(timer), stopped_(begin().fork()) {}
    ~InLoop() noexcept(false) {
      const std::lock_guard hold(signal_.mutex_);
      signal_.waiting_ = nullptr;
    }
    InLoop(const InLoop&) = delete;

    template <class T>
    kj::Promise<T> orStopped(kj::Promise<T> promise) {
      return promise.exclusiveJoin(stopped_.addBranch().then(
          []() -> kj::Promise<T> { return KJ_EXCEPTION(DISCONNECTED, "stopped"); }));
    }
    /// Fails with OVERLOADED after `time`.
    template <class T>
    kj::Promise<T> within(std::chrono::milliseconds time, kj::Promise<T> promise) {
      return orStopped(timer_.timeoutAfter(time.count() * kj::MILLISECONDS, kj::mv(promise)));
    }

   private:
    kj::Promise<void> begin() {
      const std::lock_guard hold(signal_.mutex_);
      if (signal_.stopped_) return kj::READY_NOW;
      auto waiting = kj::newPromiseAndCrossThreadFulfiller<void>();
      signal_.waiting_ = kj::mv(waiting.fulfiller);
      return kj::mv(waiting.promise);
    }

    StopSignal& signal_;
    kj::Timer& timer_;
    kj::ForkedPromise<void> stopped_;
  };

 private:
  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable condition_;
  bool stopped_ = false;
  kj::Maybe<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> waiting_;  // of the loop that the thread is in
};

}  // namespace psd::wire
