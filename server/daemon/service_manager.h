#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/notify_socket.h"

namespace psd {

/// Notifies the service manager that started the daemon: systemd's Type=notify. Does nothing without one.
/// Owned by the control loop's thread.
class ServiceManager {
 public:
  /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment. If they are invalid, logs one
  /// warning and disables what they configure.
  static ServiceManager ofEnvironment();

  /// The start, or a reload, is complete.
  void ready(const std::string& state);
  /// A reload has started; ready() ends it.
  void reloading();
  /// The shutdown has started.
  void stopping();

  /// Sends `state` when it changes, and watchdog keep-alives from this loop if the manager wants them. Never
  /// resolves.
  kj::Promise<void> keepNotifying(kj::Timer& timer, std::function<std::string()> state);

  /// While the result of startLongWork() exists, a background thread keeps asking for more time on behalf of
  /// a control loop that is blocked by long work: resuming from saved state, or saving.
  class LongWork;
  std::shared_ptr<const void> startLongWork(const std::string& state);

 private:
  /// Sends a message. The first failure logs a warning and disables all further messages.
  void tell(const std::string& lines);

  std::shared_ptr<const NotifySocket> socket_;
  std::optional<std::chrono::microseconds> watchdog_;  ///< longest time between two keep-alives
  std::string sentState_;                              ///< the last state that was sent
};

}  // namespace psd
