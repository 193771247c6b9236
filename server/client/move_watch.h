#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_addresses.h"
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
  DaemonAddresses within(std::chrono::milliseconds time);
  /// The connection has broken, or there was none.
  bool hasEnded() const;

 private:
  void run(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials);
  void note(const DaemonAddresses& to);

  wire::StopSignal stop_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  DaemonAddresses to_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace psd
