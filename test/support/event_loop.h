#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async-io.h>

namespace psd::testing {

/// A kj event loop of the calling thread whose waits throw an exception after a minute. Owned by one thread.
class TestLoop {
 public:
  template <class T>
  T wait(kj::Promise<T> promise) {
    return io_.provider->getTimer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io_.waitScope);
  }
  kj::Timer& timer() { return io_.provider->getTimer(); }
  /// Runs the loop until `condition` holds, for up to a minute; whether it did.
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
  /// Whether the promise is resolved once the loop is idle.
  template <class T>
  bool resolved(kj::Promise<T>& promise) {
    return promise.poll(io_.waitScope);
  }

 private:
  kj::AsyncIoContext io_ = kj::setupAsyncIo();
};

/// Runs `body(loop, index)` on `count` threads, each with its own loop, and waits for all of them. False if
/// one of them threw: assertions are up to the caller, since Catch2 accepts them from one thread only.
inline bool runOnThreads(size_t count, const std::function<void(TestLoop&, size_t index)>& body) {
  // kj fills static tables with the first loop of a process, under a guard that ThreadSanitizer does not see.
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
