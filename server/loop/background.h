#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <system_error>
#include <thread>

#include <kj/async.h>
#include <kj/debug.h>

#include "common/status/status.h"

namespace psd {

/// Runs blocking work (reading a file, allocating gigabytes) on a separate thread, so that no event loop
/// blocks. Owned by one event loop's thread; its destructor waits for running work.
class Background {
 public:
  /// Resolves on the calling loop with the result of `work`; rejected (OVERLOADED) if no thread can be
  /// created. `work` must not throw.
  template <class T>
  kj::Promise<T> run(std::function<T()> work) {
    // A finished thread keeps its stack until it is joined.
    threads_.remove_if([](const Thread& thread) { return thread.ended->load(std::memory_order_acquire); });
    auto done = kj::newPromiseAndCrossThreadFulfiller<T>();
    // Shared, since the thread's callable must be copyable and the fulfiller is not.
    auto fulfiller = std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<T>>>(kj::mv(done.fulfiller));
    auto ended = std::make_shared<std::atomic<bool>>(false);
    try {
      std::jthread thread([work = std::move(work), fulfiller, ended]() mutable {
        // Before the promise resolves, so that a run() that follows it can reap this thread.
        T result = work();
        work = nullptr;
        ended->store(true, std::memory_order_release);
        (*fulfiller)->fulfill(std::move(result));
        fulfiller.reset();
      });
      threads_.push_back({std::move(ended), std::move(thread)});
    } catch (const std::system_error& error) {
      return KJ_EXCEPTION(OVERLOADED, error.what());
    }
    return kj::mv(done.promise);
  }

  /// run() for an Outcome that may be an Error, which is ErrorCode::overloaded if no thread can be created.
  template <class Outcome>
  kj::Promise<Outcome> tryRun(std::function<Outcome()> work) {
    return run<Outcome>(std::move(work)).catch_([](kj::Exception&& exception) -> Outcome {
      return Error{ErrorCode::overloaded, exception.getDescription().cStr()};
    });
  }

  /// Threads that have not been reaped.
  size_t threads() const { return threads_.size(); }

 private:
  struct Thread {
    std::shared_ptr<std::atomic<bool>> ended;
    std::jthread thread;
  };
  std::list<Thread> threads_;
};

}  // namespace psd
