#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/connection.h"

namespace psd {

/// The bootstrap capability of a connection: handshake, joining, observing, administration. Belongs to
/// the connection's loop.
class DaemonService final : public schema::Daemon::Server {
 public:
  DaemonService(EventLoop& loop, Connection& connection) : loop_(loop), connection_(connection) {}

 protected:
  kj::Promise<void> hello(HelloContext context) override;
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> admin(AdminContext context) override;

 private:
  EventLoop& loop_;
  Connection& connection_;
  bool greeted_ = false;
};

}  // namespace psd
