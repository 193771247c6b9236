#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include <kj/async.h>

#include "server/store/shard.h"

namespace psd {

/// An operation in progress on a device. Shared by the device's thread and the event loop that waits.
template <class T>
class PendingOperation {
 public:
  explicit PendingOperation(kj::Own<kj::CrossThreadPromiseFulfiller<void>> fulfiller)
      : fulfiller_(kj::mv(fulfiller)) {}

  void end(T outcome) {
    outcome_ = std::move(outcome);
    ended_.store(true, std::memory_order_release);
    ended_.notify_all();
    fulfiller_->fulfill();
  }
  /// Blocks until the operation has ended.
  void wait() const { ended_.wait(false, std::memory_order_acquire); }
  /// Moves the value out. Called once.
  T take() {
    wait();  // has ended already; synchronizes with the device's thread
    return *std::move(outcome_);
  }

 private:
  const kj::Own<kj::CrossThreadPromiseFulfiller<void>> fulfiller_;
  std::optional<T> outcome_;
  std::atomic<bool> ended_ = false;
};

/// Turns a storage operation's callback into a promise for the calling event loop. A synchronous storage
/// completes inline, without cross-thread machinery.
///
/// A promise that is dropped during the operation, as at the end of an event loop, blocks until the operation
/// has ended: whatever is attached to the promise or its continuations (the gradient, the shard's lock) is
/// released only after that.
///
/// `start(done)` starts the operation.
template <class T, class Start>
kj::Promise<T> storePromise(const Shard& shard, Start start) {
  if (shard.storage().synchronous()) {
    std::optional<T> outcome;
    start([&outcome](T value) { outcome = std::move(value); });
    return std::move(*outcome);
  }
  auto pending = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto operation = std::make_shared<PendingOperation<T>>(kj::mv(pending.fulfiller));
  start([operation](T value) { operation->end(std::move(value)); });
  return pending.promise.then([operation] { return operation->take(); }).attach(kj::defer([operation] {
    operation->wait();
  }));
}

}  // namespace psd
