#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async-io.h>

namespace psd::testing {

/// A kj event loop of the calling thread whose waits end, with an exception, after a minute. Owned by one
/// thread.
class TestLoop {
 public:
  template <class T>
  T wait(kj::Promise<T> promise) {
    return io_.provider->getTimer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io_.waitScope);
  }
  kj::Timer& timer() { return io_.provider->getTimer(); }
  /// Turns until `condition` holds, a minute at most; whether it did.
  bool until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      kj::Promise<void> never = kj::NEVER_DONE;
      resolved(never);
      std::this_thread::yield();
    }
    return true;
  }
  /// Whether the promise is resolved, after everything has happened that can at once.
  template <class T>
  bool resolved(kj::Promise<T>& promise) {
    return promise.poll(io_.waitScope);
  }

 private:
  kj::AsyncIoContext io_ = kj::setupAsyncIo();
};

/// Runs `body(loop, index)` on `count` threads, each with a loop of its own, and waits for all of them. False
/// when one of them threw: assertions are for the caller, since Catch2 takes them from one thread only.
inline bool onThreads(size_t count, const std::function<void(TestLoop&, size_t index)>& body) {
  // kj fills tables of its own with the first loop of a process, under a guard that ThreadSanitizer does not
  // see.
  { const TestLoop first; }
  std::vector<char> succeeded(count, false);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; i++) {
    threads.emplace_back([&body, &succeeded, i] {
      auto failure = kj::runCatchingExceptions([&] {
        TestLoop loop;
        body(loop, i);
      });
      succeeded[i] = failure == nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (char one : succeeded) {
    if (!one) return false;
  }
  return true;
}

}  // namespace psd::testing
