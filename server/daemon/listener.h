#pragma once

#include <functional>
#include <string>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "common/os/socket.h"
#include "server/metrics/counters.h"

namespace psd {

/// Accepts connections on one address and hands them on. Owned by the control loop's thread.
class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  /// `reserved`: it came beyond `connectionsMax`, where operators alone are let in.
  using Handler = std::function<void(AcceptedSocket accepted, bool reserved)>;

  Listener(kj::AsyncIoContext& io, ListenSockets sockets, uint32_t connectionsMax, DaemonMetrics& counters,
           Handler handler);

  const Address& address() const { return sockets_.address(); }
  void setConnectionsMax(uint32_t connectionsMax) { connectionsMax_ = connectionsMax; }

 private:
  kj::Promise<void> accept(kj::UnixEventPort::FdObserver& observer, int listening);
  kj::Promise<void> retry(kj::UnixEventPort::FdObserver& observer, int listening, kj::Duration pause);
  /// Takes all that wait; how long to pause before the next look when the system is out of something.
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
