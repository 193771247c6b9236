#pragma once

#include <kj/async.h>

namespace psd {

/// While it is closed, new gradients wait. Owned by one event loop's thread.
class Gate {
 public:
  void close() {
    if (opener_ != nullptr) return;
    auto opened = kj::newPromiseAndFulfiller<void>();
    opener_ = kj::mv(opened.fulfiller);
    opened_ = opened.promise.fork();
  }
  void open() {
    KJ_IF_MAYBE (opener, opener_) {
      (*opener)->fulfill();
    }
    opener_ = nullptr;
  }
  /// Resolves when the gate opens; nullptr while it is open.
  kj::Maybe<kj::Promise<void>> closed() {
    if (opener_ == nullptr) return nullptr;
    return opened_.addBranch();
  }

 private:
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> opener_;  // while it is closed
  kj::ForkedPromise<void> opened_ = nullptr;
};

}  // namespace psd
