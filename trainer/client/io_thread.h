#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <kj/async-io.h>

namespace psd {

/// A background thread that runs an event loop, with all signals blocked. Thread-safe.
class IoThread {
 public:
  /// Returns once the loop runs; throws std::runtime_error if the system has no thread, or no descriptors for
  /// the loop.
  IoThread();
  /// Ends the loop; every object on it must have been destroyed.
  ~IoThread();

  /// Runs `work(io)` on the loop and waits for its result, a value or a promise of one. Exceptions of `work`
  /// are rethrown here.
  template <class Work>
  auto runSync(Work&& work) {
    return executor_->executeSync([this, &work] {
      runPosted();
      return work(*io_);
    });
  }

  /// Runs `work`, which does not throw, on the loop without waiting for it: after earlier posts and before a
  /// later runSync().
  void post(std::function<void()> work);
  /// On the loop's thread.
  kj::AsyncIoContext& context() const { return *io_; }

 private:
  using Wake = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;

  /// On the loop's thread: runs it, and sets `running` once it does.
  void run(kj::AsyncIoContext& io, std::promise<void>& running);
  /// On the loop's thread.
  void runPosted();
  /// Makes the next post() wake the loop; resolves when that has happened.
  kj::Promise<void> serve();

  kj::AsyncIoContext* io_ = nullptr;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> exit_;  // belongs to the loop's thread
  std::mutex mutex_;                          // guards posted_ and wake_
  std::vector<std::function<void()>> posted_;
  Wake wake_;  // null while the loop is about to run posted_
  std::thread thread_;
};

}  // namespace psd
