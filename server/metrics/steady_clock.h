#pragma once

#include <chrono>
#include <cstdint>

namespace psd {

/// Milliseconds of a monotonic clock with an arbitrary origin.
inline uint64_t steadyMs() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count());
}

}  // namespace psd
