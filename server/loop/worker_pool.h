#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// A fixed number of threads for short blocking work on behalf of many connections, in order of arrival.
/// Thread-safe; outlives the event loops that wait for its results.
class WorkerPool {
 public:
  explicit WorkerPool(size_t threads) {
    for (size_t i = 0; i < threads; i++) threads_.emplace_back([this] { serve(); });
  }
  /// Drops waiting work and waits for running work.
  ~WorkerPool() {
    {
      const std::lock_guard hold(mutex_);
      stopped_ = true;
      queue_.clear();
    }
    changed_.notify_all();
    threads_.clear();
  }

  /// Resolves on the calling loop with the outcome of `work`. If the promise is dropped before the work
  /// starts, the work is skipped.
  template <class Outcome>
  kj::Promise<Outcome> run(std::function<Outcome()> work) {
    auto result = kj::newPromiseAndCrossThreadFulfiller<Outcome>();
    using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Outcome>>;
    auto fulfiller = std::make_shared<Fulfiller>(kj::mv(result.fulfiller));
    add([fulfiller, work = std::move(work)] {
      if ((*fulfiller)->isWaiting()) (*fulfiller)->fulfill(outcomeOf<Outcome>(work));
    });
    return kj::mv(result.promise);
  }

 private:
  template <class Outcome>
  static Outcome outcomeOf(const std::function<Outcome()>& work) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::overloaded, "out of memory"};
    }
  }
  void add(std::function<void()> work) {
    {
      const std::lock_guard hold(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }
  void serve() {
    std::unique_lock hold(mutex_);
    for (;;) {
      changed_.wait(hold, [this] { return stopped_ || !queue_.empty(); });
      if (stopped_) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      hold.unlock();
      work();
      work = nullptr;  // destroy its captures without the lock
      hold.lock();
    }
  }

  std::mutex mutex_;  // guards the members below, except threads_
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopped_ = false;
  std::vector<std::jthread> threads_;  // last: they use all members above
};

}  // namespace psd
