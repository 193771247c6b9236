#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <system_error>
#include <thread>

#include <kj/async.h>
#include <kj/debug.h>

namespace psd {

/// Runs what must block (reading a file, allocating gigabytes) on a thread of its own, so that no event
/// loop does. Owned by one event loop's thread; its destructor waits for what is running.
class Background {
 public:
  /// Resolves on the calling loop with what `work` returned; rejected where the system has no thread. `work`
  /// must not throw.
  template <class T>
  kj::Promise<T> run(std::function<T()> work) {
    // A thread that has ended keeps its stack until it is joined.
    threads_.remove_if([](const Thread& thread) { return thread.ended->load(std::memory_order_acquire); });
    auto done = kj::newPromiseAndCrossThreadFulfiller<T>();
    // std::thread wants a copyable callable; the fulfiller has one owner.
    auto fulfiller = std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<T>>>(kj::mv(done.fulfiller));
    auto ended = std::make_shared<std::atomic<bool>>(false);
    try {
      std::jthread thread([work = std::move(work), fulfiller, ended]() mutable {
        // Before the promise resolves, so that whoever runs something after it finds this thread ended.
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

  /// Threads that are not known to have ended.
  size_t threads() const { return threads_.size(); }

 private:
  struct Thread {
    std::shared_ptr<std::atomic<bool>> ended;
    std::jthread thread;
  };
  std::list<Thread> threads_;
};

}  // namespace psd
