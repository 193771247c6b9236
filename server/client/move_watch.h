#pragma once

#include <chrono>
#include <optional>
#include <thread>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_addresses.h"
#include "common/types/move_notification.h"
#include "common/wire/stop_signal.h"
#include "schema/psd.capnp.h"

namespace psd {

/// Where the model has moved to from the daemon of a login; nothing: it has not.
Result<std::optional<DaemonAddresses>> movedAway(const Address& address, schema::LoginResult::Reader login);
/// ErrorCode::standby: the model has moved there.
Error movedError(const DaemonAddresses& to);

/// Watches, over a connection of its own, where the model of a daemon moves to. Thread-safe.
class MoveWatch {
 public:
  /// `timeout`: to connect and log in.
  MoveWatch(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials);
  ~MoveWatch();

  /// Where the model has moved to; empty: nowhere. Waits for that until `time` is over or the watch has
  /// ended.
  DaemonAddresses within(std::chrono::milliseconds time) const { return notification_.within(time); }
  /// The model has moved, the connection has broken, or there was none.
  bool hasEnded() const { return notification_.over(); }

 private:
  void run(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials);

  wire::StopSignal stop_;
  MoveNotification notification_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace psd
