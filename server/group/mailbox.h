#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <kj/async.h>

namespace psd {

/// Work for one event loop from threads that need not have a loop: it is done in order, and nobody waits for
/// it. What is left when the mailbox goes is dropped. put() is thread-safe; all else is the loop's.
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

  /// Does the work as it comes; runs as long as the promise is held.
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
