#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

namespace psd {

/// While it lives, the first SIGINT or SIGTERM is remembered instead of ending the process; a second one
/// ends it at once. One per process at a time; made and dropped on the main thread.
class StopSignals {
 public:
  struct Listener {
    std::function<void(int signal)> onSignal;  ///< as soon as the first one has come
    std::function<void()> onImpatience;        ///< when `patience` has passed since, and this still lives
    std::chrono::milliseconds patience{2000};
  };

  /// The listener is called on a thread of its own.
  explicit StopSignals(Listener listener);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, or 0.
  int received() const;

 private:
  void listen() const;

  const Listener listener_;
  std::array<struct sigaction, 2> previous_{};
  std::thread thread_;
};

}  // namespace psd
