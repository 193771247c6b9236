#pragma once

#include <string>
#include <string_view>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// The datagram socket over which a program reports its state to its service manager: the protocol of
/// sd_notify(3). Thread-safe once open.
class NotifySocket {
 public:
  /// Connects to `name` in the form of NOTIFY_SOCKET: "/path", or "@name" in the abstract namespace.
  static Result<NotifySocket> open(std::string_view name);

  /// Sends one message: lines such as READY=1. Waits at most a second for a manager that does not read.
  Status tell(std::string_view lines) const;

 private:
  explicit NotifySocket(OwnFd fd) : fd_(std::move(fd)) {}
  OwnFd fd_;
};

}  // namespace psd
