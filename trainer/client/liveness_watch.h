#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <kj/async.h>

#include "trainer/client/transport/daemon_connection.h"

namespace psd {

/// Sends heartbeats to a daemon in the background, whatever this program does, which renews the lease of a
/// joined trainer, and detects a daemon that does not answer. Belongs to the connection's event loop; stops
/// when destroyed.
class LivenessWatch final : private kj::TaskSet::ErrorHandler {
 public:
  /// Calls `fail` when no bytes have arrived for `silence`, or the daemon says that the session is over.
  LivenessWatch(DaemonConnection& connection, std::chrono::milliseconds silence,
                std::function<void(const Error&)> fail);

 private:
  kj::Promise<void> beat(kj::Duration interval);
  void sendHeartbeat();
  void taskFailed(kj::Exception&&) override {}  // a broken connection shows in the next call

  DaemonConnection& connection_;
  const std::function<void(const Error&)> fail_;
  uint64_t lastReceivedBytes_ = UINT64_MAX;  // bytes received by the last heartbeat; initially none
  uint64_t idleHeartbeats_ = 0;              // consecutive heartbeats without received bytes
  kj::TaskSet heartbeats_;                   // unanswered heartbeats
  kj::Promise<void> beats_;
};

}  // namespace psd
