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

/// What the daemon tells the service manager that started it: systemd's Type=notify. Where none did it does
/// nothing. Owned by the control loop's thread.
class ServiceManager {
 public:
  /// NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of the environment. What is wrong with them is one
  /// warning, and the daemon runs without.
  static ServiceManager ofEnvironment();

  /// Whoever waits for the start may go on.
  void ready(const std::string& state);
  /// A reload begins; ready() says that it is over.
  void reloading();
  /// The end begins.
  void stopping();

  /// Tells `state` as it changes and, where the manager asks for it, that this loop still turns. Never
  /// resolves.
  kj::Promise<void> keepTelling(kj::Timer& timer, std::function<std::string()> state);

  /// While it lives, a thread of its own asks for more time, again and again, on behalf of a control loop
  /// that is at work on something long: going on with what was saved, or saving.
  class LongWork;
  std::shared_ptr<const void> beginLongWork(const std::string& state);

 private:
  /// Until a message cannot be sent: that is said once.
  void tell(const std::string& lines);

  std::shared_ptr<const NotifySocket> socket_;
  std::optional<std::chrono::microseconds> watchdog_;  ///< so long may be between two signs of life
  std::string told_;                                   ///< the last state
};

}  // namespace psd
