#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Divides this process's file descriptors: connections get those that the daemon's own work does not need,
/// so that a log or a checkpoint never waits for a peer to disconnect. A value type.
struct DescriptorBudget {
  uint64_t limit = UINT64_MAX;  ///< total, as RLIMIT_NOFILE; UINT64_MAX: unlimited
  uint64_t kept = 0;            ///< reserved for everything except connections
  uint64_t perConnection = 1;   ///< its socket, and its memory file if rings are offered

  /// The number of connections that fit, each with a ring.
  uint64_t connectionsMax() const;
  /// The smallest limit with which that many connections fit.
  uint64_t limitFor(uint64_t connections) const { return kept + connections * perConnection; }
  /// Human-readable: that fewer connections fit than limits.connections asks for, and which limit would do;
  /// empty if all fit.
  std::string shortfall(uint32_t connections) const;
  /// ErrorCode::unavailable, naming a sufficient limit, if not even one connection fits.
  Status check() const;
};

/// The budget of a daemon with this configuration, if `open` descriptors are open before its event loops and
/// listeners are created.
DescriptorBudget divideDescriptors(const DaemonConfig& config, uint64_t limit, uint64_t open);

/// The budget of this process, from its current limit and open descriptors.
DescriptorBudget ownDescriptors(const DaemonConfig& config);

}  // namespace psd
