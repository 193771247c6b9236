#pragma once

#include <cstdint>
#include <memory>

#include "server/checkpoint/log_format.h"
#include "server/membership/roster.h"
#include "server/store/update_log.h"

namespace psd {

class LogWriter;

/// The log of a daemon with a standby: records go to the standby, and to the log on disk if there is one.
/// Thread-safe.
class ReplicatedLog : public UpdateLog {
 public:
  using UpdateLog::append;
  /// The logged blocks are replaced from now on: a follower of the previous ones cannot continue.
  virtual void resetFollowers() = 0;
  /// Sets the log on disk from now on; null: none.
  virtual void setDisk(std::shared_ptr<LogWriter> disk) = 0;
  /// Appends an assignment of samples; returns its LSN.
  virtual uint64_t append(const LoggedAssignment& assignment) = 0;
  /// Appends the finished ranks so far; returns the LSN. Sent only to the standby.
  virtual uint64_t append(const Departed& departed) = 0;
};

}  // namespace psd
