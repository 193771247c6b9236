#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// How the file descriptors that the system allows this process are shared out: connections get those that
/// the daemon's own work does not need, so that a log or a checkpoint never waits for a peer to hang up. A
/// value type.
struct DescriptorBudget {
  uint64_t limit = UINT64_MAX;  ///< of all, as RLIMIT_NOFILE; UINT64_MAX: none
  uint64_t kept = 0;            ///< of these, for all but connections
  uint64_t perConnection = 1;   ///< its socket, and where rings are offered the memory file of one

  /// How many connections fit, and as many rings.
  uint64_t connectionsMax() const;
  /// The smallest limit with which so many fit.
  uint64_t limitFor(uint64_t connections) const { return kept + connections * perConnection; }
  /// For people: that fewer fit than limits.connections asks for, and what would be right; empty where all
  /// do.
  std::string shortfall(uint32_t connections) const;
  /// ErrorCode::unavailable, with the limit that would do, where not even one connection fits.
  Status check() const;
};

/// The budget of a daemon with this configuration, when `open` descriptors are open before its event loops
/// and listeners are there.
DescriptorBudget shareDescriptors(const DaemonConfig& config, uint64_t limit, uint64_t open);

/// The budget of this process, with the limit and the open descriptors that it has now.
DescriptorBudget ownDescriptors(const DaemonConfig& config);

}  // namespace psd
