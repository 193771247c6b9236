#include "server/daemon/listener.h"

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "server/auth/authenticator.h"
#include "server/limits/operator_reserve.h"

namespace psd {

Listener::Listener(kj::AsyncIoContext& io, ListenSockets sockets, uint32_t connectionsMax,
                   DaemonMetrics& counters, Handler handler)
    : io_(io),
      sockets_(std::move(sockets)),
      connectionsMax_(connectionsMax),
      counters_(counters),
      handler_(std::move(handler)),
      tasks_(*this) {
  for (const OwnFd& socket : sockets_.sockets()) {
    auto observer = kj::heap<kj::UnixEventPort::FdObserver>(io_.unixEventPort, socket.get(),
                                                            kj::UnixEventPort::FdObserver::OBSERVE_READ);
    auto& ref = *observer;
    tasks_.add(accept(ref, socket.get()).attach(kj::mv(observer)));
  }
}

kj::Promise<void> Listener::accept(kj::UnixEventPort::FdObserver& observer, int listening) {
  return observer.whenBecomesReadable().then([this, &observer, listening]() -> kj::Promise<void> {
    kj::Duration pause = acceptWaiting(listening);
    if (pause == 0 * kj::SECONDS) return accept(observer, listening);
    // Connections that are already in the backlog do not trigger the edge again; poll after the pause.
    return retry(observer, listening, pause);
  });
}

kj::Promise<void> Listener::retry(kj::UnixEventPort::FdObserver& observer, int listening,
                                  kj::Duration pause) {
  return io_.provider->getTimer().afterDelay(pause).then([this, &observer, listening]() -> kj::Promise<void> {
    kj::Duration again = acceptWaiting(listening);
    return again == 0 * kj::SECONDS ? accept(observer, listening) : retry(observer, listening, again);
  });
}

kj::Duration Listener::acceptWaiting(int listening) {
  for (;;) {
    auto accepted = acceptFrom(listening);
    if (!accepted.ok()) {
      logLine(spdlog::level::warn, {.event = "accept_failed", .limited = true},
              "{}: cannot accept a connection: {}; retrying", address().toString(), accepted.message());
      return 100 * kj::MILLISECONDS;
    }
    if (accepted->fd.get() < 0) return 0 * kj::SECONDS;
    const uint64_t open = counters_.connectionsOpen.value();
    const uint64_t forLocal =
        Peer{.where = {}, .user = accepted->user}.ownUser() ? kLocalOperatorConnections : 0;
    if (open >= connectionsMax_ + uint64_t{kOperatorConnections} + forLocal) {
      counters_.connectionsRefused.add();
      logLine(spdlog::level::warn, {.event = "connection_refused", .peer = accepted->peer, .limited = true},
              "refused {}: limits.connections ({}) and the reserve for operators are in use", accepted->peer,
              connectionsMax_);
      continue;
    }
    const bool reserved = open >= connectionsMax_;
    if (reserved) {
      logLine(spdlog::level::warn, {.event = "connection_reserved", .peer = accepted->peer, .limited = true},
              "{}: limits.connections ({}) are in use; only an operator may log in", accepted->peer,
              connectionsMax_);
    }
    counters_.connectionsAccepted.add();
    counters_.connectionsOpen.add();
    handler_(*std::move(accepted), reserved);
  }
}

void Listener::taskFailed(kj::Exception&& exception) {
  spdlog::error("{}: stopped accepting: {}", address().toString(), exception.getDescription().cStr());
}

}  // namespace psd
