#pragma once

#include <chrono>

namespace psd {

/// The current time, in seconds since 1970.
inline double unixTimeNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace psd
