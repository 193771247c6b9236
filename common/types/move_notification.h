#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "common/types/daemon_addresses.h"

namespace psd {

/// Where the model has moved to from an observed daemon: set by the thread of the connection, read by
/// threads that make calls. Thread-safe.
class MoveNotification final {
 public:
  /// The model has moved there; later calls are ignored.
  void set(DaemonAddresses to) {
    const std::lock_guard hold(mutex_);
    if (over_) return;
    to_ = std::move(to);
    over_ = true;
    changed_.notify_all();
  }
  /// No further notification will arrive.
  void end() { set({}); }
  /// Whether the outcome is known, or no further notification will arrive.
  bool over() const {
    const std::lock_guard hold(mutex_);
    return over_;
  }
  /// Waits until over(), at most `time`; returns the daemons that serve the model now; empty: not known to
  /// have moved.
  DaemonAddresses within(std::chrono::milliseconds time) const {
    std::unique_lock hold(mutex_);
    changed_.wait_for(hold, time, [this] { return over_; });
    return to_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  DaemonAddresses to_;
  bool over_ = false;
};

}  // namespace psd
