#pragma once

#include <cstdint>
#include <memory>

#include "server/checkpoint/log_format.h"
#include "server/membership/roster.h"
#include "server/store/update_log.h"

namespace psd {

class LogWriter;

/// The log of a daemon that another one follows: its records go to that one, and to the disk where there is a
/// log on it. Thread-safe.
class ReplicatedLog : public UpdateLog {
 public:
  using UpdateLog::append;
  /// The blocks whose updates are logged are others from now on: nobody can follow who followed those.
  virtual void beginAnew() = 0;
  /// The disk's log from now on; null: there is none.
  virtual void setDisk(std::shared_ptr<LogWriter> disk) = 0;
  /// Appends a deal of samples; gives its number.
  virtual uint64_t append(const LoggedDeal& deal) = 0;
  /// Appends which trainers have come and gone until now; gives its number. It goes to the follower alone.
  virtual uint64_t append(const Departed& departed) = 0;
};

}  // namespace psd
