#pragma once

#include <functional>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/loop/background.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Follows what changes around a daemon while it runs: the room on its disks, measured on a thread every
/// kDiskInterval, and what `daily` checks. Owned by the control loop's thread.
class Upkeep {
 public:
  static constexpr auto kDiskInterval = 10 * kj::SECONDS;
  static constexpr auto kDailyInterval = 24 * kj::HOURS;

  /// Measures once; blocks. `folders` that cannot be measured are left out of disks(). `timer` must outlive
  /// the object.
  Upkeep(kj::Timer& timer, std::vector<std::string> folders, std::function<void()> daily);

  const std::vector<DiskStatus>& disks() const { return disks_; }

 private:
  kj::Promise<void> keepMeasuring();
  kj::Promise<void> keepChecking();

  kj::Timer& timer_;
  const std::vector<std::string> folders_;
  const std::function<void()> daily_;
  std::vector<DiskStatus> disks_;
  Background background_;
  kj::Promise<void> measuring_ = kj::READY_NOW;
  kj::Promise<void> checking_ = kj::READY_NOW;
};

}  // namespace psd
