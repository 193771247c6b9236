#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "server/serving/move_record.h"

namespace psd {

/// What event loops and services see of a ServingState, which writes it. Thread-safe.
class ServingView final {
 public:
  /// The updates that are accepted.
  enum class Updates : uint8_t {
    all,
    inFlight,  ///< those that have begun
    none,
  };

  Updates updates() const { return updates_.load(std::memory_order_acquire); }
  void setUpdates(Updates updates) { updates_.store(updates, std::memory_order_release); }
  /// Whether calls that begin something are accepted.
  bool draining() const { return updates() != Updates::all; }

  /// Where the model is served after it has moved; move 0: here.
  RecordedMove moved() const {
    const std::lock_guard hold(mutex_);
    return moved_;
  }
  void setMoved(RecordedMove moved) {
    const std::lock_guard hold(mutex_);
    moved_ = std::move(moved);
  }

 private:
  std::atomic<Updates> updates_{Updates::all};
  mutable std::mutex mutex_;
  RecordedMove moved_;
};

}  // namespace psd
