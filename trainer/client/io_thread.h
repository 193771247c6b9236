#pragma once

#include <memory>
#include <optional>
#include <thread>

#include <kj/async-io.h>

namespace psd {

/// A background thread that runs an event loop with no signals delivered to it. Owned by one thread.
class IoThread {
 public:
  /// Returns once the loop runs.
  IoThread();
  /// Ends the loop; whatever lives on it must be gone.
  ~IoThread();

  /// Runs `work(io)` on the loop and waits for what it returns, a value or a promise of one. What `work`
  /// throws is thrown here.
  template <class Work>
  auto runSync(Work&& work) {
    return executor_->executeSync([this, &work] { return work(*io_); });
  }

 private:
  kj::AsyncIoContext* io_ = nullptr;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> exit_;  // belongs to the loop's thread
  std::thread thread_;
};

}  // namespace psd
