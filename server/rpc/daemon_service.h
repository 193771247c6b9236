#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"

namespace psd {

/// The bootstrap capability of a connection: handshake, joining, observing, administration. Belongs to
/// the connection's loop.
class DaemonService final : public CountedService<schema::Daemon> {
 public:
  explicit DaemonService(std::shared_ptr<Connection> connection)
      : CountedService(std::move(connection)), loop_(connection_->loop()) {}

 protected:
  kj::Promise<void> hello(HelloContext context) override;
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> attach(AttachContext context) override;
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> admin(AdminContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }

 private:
  EventLoop& loop_;  // the connection's; it keeps it alive
  bool greeted_ = false;
  kj::Maybe<schema::Admin::Client> admin_;  // once asked for; one for all who ask
};

}  // namespace psd
