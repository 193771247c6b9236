#pragma once

#include "server/group/group_member.h"

namespace psd {

/// A server's part in a group of daemons, made where an engine is configured. Owned by the control loop's
/// thread.
class ServerGroup {
 public:
  virtual ~ServerGroup() noexcept(false) = default;
  /// Begins to find out what this daemon is; until it serves nobody is let in.
  virtual void start() = 0;
  virtual GroupMember& member() = 0;
  /// Whether another daemon has the model, or is to have it when this one is gone.
  virtual bool goesOnElsewhere() const = 0;
  /// Whether another daemon rules the model, or may: nobody is served here.
  virtual bool follows() const = 0;
  /// The keys of one daemon are as in this configuration from now on, whoever rules the model.
  virtual void keepOwn(const nlohmann::ordered_json& effective) = 0;
  /// Of a standby: its limits that are below its primary's, see psd::limitsBelow().
  virtual std::vector<std::string> limitsBelow() const = 0;
};

}  // namespace psd
