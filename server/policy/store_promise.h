#pragma once

#include <kj/async.h>

#include "server/store/shard.h"

namespace psd {

/// Turns a storage operation's callback into a promise for the calling event loop. A synchronous
/// storage answers inline and costs no cross-thread machinery.
///
/// `start(done)` begins the operation.
template <class T, class Start>
kj::Promise<T> storePromise(const Shard& shard, Start start) {
  if (shard.storage().synchronous()) {
    std::optional<T> outcome;
    start([&outcome](T value) { outcome = std::move(value); });
    return std::move(*outcome);
  }
  auto pending = kj::newPromiseAndCrossThreadFulfiller<T>();
  // std::function wants a copyable callable; the fulfiller has one owner.
  auto fulfiller = std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<T>>>(kj::mv(pending.fulfiller));
  start([fulfiller](T value) { (*fulfiller)->fulfill(std::move(value)); });
  return kj::mv(pending.promise);
}

}  // namespace psd
