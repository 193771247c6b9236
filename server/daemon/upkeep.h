#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/loop/background.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Follows what changes around a daemon while it runs: the room on its disks and its open descriptors,
/// measured on a thread every kInterval, and what `daily` checks. Owned by the control loop's thread.
class Upkeep {
 public:
  static constexpr auto kInterval = 10 * kj::SECONDS;
  static constexpr auto kDailyInterval = 24 * kj::HOURS;

  /// Measures once; blocks. `folders` that cannot be measured are left out of disks(). `timer` must outlive
  /// the object.
  Upkeep(kj::Timer& timer, std::vector<std::string> folders, std::function<void()> daily);

  const std::vector<DiskStatus>& disks() const { return measured_.disks; }
  uint64_t openDescriptors() const { return measured_.descriptors; }

 private:
  struct Measured {
    std::vector<DiskStatus> disks;
    uint64_t descriptors = 0;
  };
  static Measured measure(const std::vector<std::string>& folders);
  kj::Promise<void> keepMeasuring();
  kj::Promise<void> keepChecking();

  kj::Timer& timer_;
  const std::vector<std::string> folders_;
  const std::function<void()> daily_;
  Measured measured_;
  Background background_;
  kj::Promise<void> measuring_ = kj::READY_NOW;
  kj::Promise<void> checking_ = kj::READY_NOW;
};

}  // namespace psd
