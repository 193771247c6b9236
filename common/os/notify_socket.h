#pragma once

#include <string>
#include <string_view>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// The datagram socket by which a program tells the service manager that started it how it fares: the
/// protocol of sd_notify(3). Thread-safe once open.
class NotifySocket {
 public:
  /// Connects to `name` as NOTIFY_SOCKET gives it: "/path", or "@name" for one that is in no file system.
  static Result<NotifySocket> open(std::string_view name);

  /// One message: lines such as READY=1. Waits at most a second for a manager that does not read.
  Status tell(std::string_view lines) const;

 private:
  explicit NotifySocket(OwnFd fd) : fd_(std::move(fd)) {}
  OwnFd fd_;
};

}  // namespace psd
