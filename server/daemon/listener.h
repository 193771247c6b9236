#pragma once

#include <functional>
#include <string>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "common/os/socket.h"
#include "server/metrics/counters.h"

namespace psd {

/// Accepts connections on one address and passes them to a handler. Owned by the control loop's thread.
class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  /// `reserved`: the connection exceeds `connectionsMax` and is admitted for operators only.
  using Handler = std::function<void(AcceptedSocket accepted, bool reserved)>;

  Listener(kj::AsyncIoContext& io, ListenSockets sockets, uint32_t connectionsMax, DaemonMetrics& counters,
           Handler handler);

  const Address& address() const { return sockets_.address(); }
  void setConnectionsMax(uint32_t connectionsMax) { connectionsMax_ = connectionsMax; }

 private:
  kj::Promise<void> accept(kj::UnixEventPort::FdObserver& observer, int listening);
  kj::Promise<void> retry(kj::UnixEventPort::FdObserver& observer, int listening, kj::Duration pause);
  /// Accepts all waiting connections. Returns how long to wait before retrying if the system is out of a
  /// resource; else 0.
  kj::Duration acceptWaiting(int listening);
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  ListenSockets sockets_;
  uint32_t connectionsMax_;
  DaemonMetrics& counters_;
  Handler handler_;
  kj::TaskSet tasks_;
};

}  // namespace psd
