#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "common/types/daemon_places.h"

namespace psd {

/// Where the model has moved to from a daemon that is observed, as the connection's I/O thread hears, for the
/// client's thread. Thread-safe.
class MoveHeard final {
 public:
  /// It has moved there; the first word stands.
  void tell(DaemonPlaces to) {
    const std::lock_guard hold(mutex_);
    if (over_) return;
    to_ = std::move(to);
    over_ = true;
    told_.notify_all();
  }
  /// Nothing more will be heard.
  void end() { tell({}); }
  /// Whether it is known, or nothing more will be heard.
  bool over() const {
    const std::lock_guard hold(mutex_);
    return over_;
  }
  /// Waits until over(), for that time at most; gives the daemons that serve the model now; none: as far as
  /// is known it has not moved.
  DaemonPlaces within(std::chrono::milliseconds time) const {
    std::unique_lock hold(mutex_);
    told_.wait_for(hold, time, [this] { return over_; });
    return to_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable told_;
  DaemonPlaces to_;
  bool over_ = false;
};

}  // namespace psd
