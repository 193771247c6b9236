#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

namespace psd {

/// While it exists, the first SIGINT or SIGTERM is recorded instead of ending the process; a second one ends
/// the process immediately. One per process at a time; created and destroyed on the main thread.
class StopSignals {
 public:
  struct Listener {
    std::function<void(int signal)> onSignal;  ///< called on the first signal
    std::function<void()> onTimeout;           ///< called `timeout` later, unless this is destroyed before
    std::chrono::milliseconds timeout{2000};
  };

  /// The listener is called on a separate thread.
  explicit StopSignals(Listener listener);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The received signal, or 0.
  int received() const;

 private:
  void listen() const;

  const Listener listener_;
  std::array<struct sigaction, 2> previous_{};
  std::thread thread_;
};

}  // namespace psd
