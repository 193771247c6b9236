#pragma once

#include "server/group/group_member.h"

namespace psd {

/// A server's membership in a replica set, created if an engine is configured. Owned by the control loop's
/// thread.
class ServerGroup {
 public:
  virtual ~ServerGroup() noexcept(false) = default;
  /// Starts to determine this daemon's role. Joins are rejected until it serves.
  virtual void start() = 0;
  virtual GroupMember& member() = 0;
  /// Whether another daemon serves the model, or will when this one ends.
  virtual bool goesOnElsewhere() const = 0;
  /// Whether this daemon does not serve, since another daemon is the primary or may be.
  virtual bool follows() const = 0;
  /// From now on this daemon's own keys are as in this configuration, whichever daemon is the primary.
  virtual void keepOwn(const nlohmann::ordered_json& effective) = 0;
  /// The limits of this standby that are below its primary's, see psd::limitsBelow(); empty on a primary.
  virtual std::vector<std::string> limitsBelow() const = 0;
};

}  // namespace psd
