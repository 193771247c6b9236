#pragma once

#include <future>
#include <memory>
#include <utility>

namespace psd {

/// Starts a storage operation with `start(done)` and blocks until it completes. Must not be called on an
/// event loop.
template <class T, class Start>
T await(Start start) {
  // Shared ownership: the device's thread may still be inside set_value() when get() returns here.
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  start([promise](T outcome) { promise->set_value(std::move(outcome)); });
  return future.get();
}

}  // namespace psd
