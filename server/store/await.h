#pragma once

#include <future>
#include <memory>
#include <utility>

namespace psd {

/// Waits for a storage operation: `start(done)` begins it. For threads that may block, not for event loops.
template <class T, class Start>
T await(Start start) {
  // Shared: the device's thread may still be inside set_value() when get() returns here.
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  start([promise](T outcome) { promise->set_value(std::move(outcome)); });
  return future.get();
}

}  // namespace psd
