#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <kj/async.h>

namespace psd {

/// Runs what must block (reading a file, allocating gigabytes) on a thread of its own, so that no event
/// loop does. Owned by one event loop's thread; its destructor waits for what is running.
class Background {
 public:
  /// Resolves on the calling loop with what `work` returned. `work` must not throw.
  template <class T>
  kj::Promise<T> run(std::function<T()> work) {
    auto done = kj::newPromiseAndCrossThreadFulfiller<T>();
    // std::thread wants a copyable callable; the fulfiller has one owner.
    auto fulfiller = std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<T>>>(kj::mv(done.fulfiller));
    threads_.emplace_back([work = std::move(work), fulfiller]() mutable {
      (*fulfiller)->fulfill(work());
      fulfiller.reset();
    });
    return kj::mv(done.promise);
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace psd
