#pragma once

#include "server/cluster/replica_controller.h"

namespace psd {

/// A server's membership in a replica set, created if an engine is configured. Owned by the control loop's
/// thread.
class ServerReplicaSet {
 public:
  virtual ~ServerReplicaSet() noexcept(false) = default;
  /// Starts to determine this daemon's role. Joins are rejected until it serves.
  virtual void start() = 0;
  virtual ReplicaController& member() = 0;
  /// Whether another daemon serves the model, or will when this one ends.
  virtual bool continuesElsewhere() const = 0;
  /// From now on this daemon's own keys are as in this configuration, whichever daemon is the primary.
  virtual void setOwnConfig(const nlohmann::ordered_json& effective) = 0;
  /// The limits of this standby that are below its primary's, see psd::lowerLimits(); empty on a primary.
  virtual std::vector<std::string> lowerLimits() const = 0;
};

}  // namespace psd
