#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <kj/async-io.h>

namespace psd {

/// A background thread that runs an event loop with no signals delivered to it. Owned by one thread, which
/// makes all calls but post().
class IoThread {
 public:
  /// Returns once the loop runs; throws std::runtime_error where the system gives no thread, or no
  /// descriptors for the loop.
  IoThread();
  /// Ends the loop; whatever lives on it must be gone.
  ~IoThread();

  /// Runs `work(io)` on the loop and waits for what it returns, a value or a promise of one. What `work`
  /// throws is thrown here.
  template <class Work>
  auto runSync(Work&& work) {
    return executor_->executeSync([this, &work] {
      runPosted();
      return work(*io_);
    });
  }

  /// Runs `work`, which throws nothing, on the loop and does not wait for it: after what was posted before,
  /// ahead of a later runSync(). From any thread.
  void post(std::function<void()> work);

 private:
  using Wake = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;

  /// On the loop's thread: runs it, and says when it does.
  void run(kj::AsyncIoContext& io, std::promise<void>& running);
  /// On the loop's thread.
  void runPosted();
  /// Makes the next post() wake the loop; resolves when it did.
  kj::Promise<void> serve();

  kj::AsyncIoContext* io_ = nullptr;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> exit_;  // belongs to the loop's thread
  std::mutex mutex_;                          // guards these two
  std::vector<std::function<void()>> posted_;
  Wake wake_;  // null while the loop is on its way to posted_ already
  std::thread thread_;
};

}  // namespace psd
