#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "common/types/daemon_addresses.h"

namespace psd {

/// Where the model is served after it has moved away from this daemon. Thread-safe.
class MovedAway final {
 public:
  struct Place {
    uint64_t move = 0;  ///< the move's number; 0: the model is here
    DaemonAddresses to;
  };
  void set(Place place) {
    const std::lock_guard hold(mutex_);
    place_ = std::move(place);
  }
  Place get() const {
    const std::lock_guard hold(mutex_);
    return place_;
  }

 private:
  mutable std::mutex mutex_;
  Place place_;
};

}  // namespace psd
