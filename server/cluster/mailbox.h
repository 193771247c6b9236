#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <kj/async.h>

namespace psd {

/// Queues work for one event loop from threads that need no loop of their own. The work runs in order; no
/// caller waits for it. Work left in the queue is dropped on destruction. put() is thread-safe; everything
/// else runs on the loop.
class Mailbox {
 public:
  void put(std::function<void()> work) {
    kj::Maybe<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> wake;
    {
      const std::lock_guard hold(mutex_);
      work_.push_back(std::move(work));
      wake = kj::mv(reader_);
      reader_ = nullptr;
    }
    KJ_IF_MAYBE (reader, wake) (*reader)->fulfill();
  }

  /// Runs the queued work, for as long as the promise is held.
  kj::Promise<void> run() {
    return whenFilled().then([this] {
      std::vector<std::function<void()>> work;
      {
        const std::lock_guard hold(mutex_);
        work.swap(work_);
      }
      for (const auto& each : work) each();
      return run();
    });
  }

 private:
  kj::Promise<void> whenFilled() {
    const std::lock_guard hold(mutex_);
    if (!work_.empty()) return kj::READY_NOW;
    auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
    reader_ = kj::mv(waiter.fulfiller);
    return kj::mv(waiter.promise);
  }

  std::mutex mutex_;  // guards what follows
  std::vector<std::function<void()>> work_;
  kj::Maybe<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> reader_;
};

}  // namespace psd
