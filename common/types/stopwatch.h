#pragma once

#include <chrono>

namespace psd {

/// Measures the time since its construction. A value type.
class Stopwatch {
 public:
  /// Seconds since the start or the last lap.
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// Seconds since the start or the last lap; starts the next lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> elapsed = now - start_;
    start_ = now;
    return elapsed.count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace psd
