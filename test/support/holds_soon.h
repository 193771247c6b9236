#pragma once

#include <chrono>
#include <thread>

namespace psd::testing {

/// Waits until `condition()` holds, for up to three minutes, and returns whether it does. For effects of
/// other threads that no call waits for.
template <class Condition>
bool holdsSoon(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace psd::testing
