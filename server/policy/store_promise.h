#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include <kj/async.h>

#include "server/store/shard.h"

namespace psd {

/// An operation that a device is at work on. Shared by the device's thread and the event loop that waits.
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
  /// Takes the value out. To be called once.
  T take() {
    wait();  // it has ended; this orders what the device's thread did before what follows
    return *std::move(outcome_);
  }

 private:
  const kj::Own<kj::CrossThreadPromiseFulfiller<void>> fulfiller_;
  std::optional<T> outcome_;
  std::atomic<bool> ended_ = false;
};

/// Turns a storage operation's callback into a promise for the calling event loop. A synchronous
/// storage answers inline and costs no cross-thread machinery.
///
/// A promise that is dropped while a device is at work, as at an event loop's end, waits for it: what is
/// attached to the promise or to what follows from it (the gradient, the shard's lock) is let go after that.
///
/// `start(done)` begins the operation.
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
