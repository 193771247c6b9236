#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/connection.h"

namespace psd {

/// The operator's calls: status and stop. Belongs to the connection's loop.
class AdminService final : public schema::Admin::Server {
 public:
  AdminService(EventLoop& loop, Connection& connection) : loop_(loop), connection_(connection) {}

 protected:
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> stop(StopContext context) override;

 private:
  EventLoop& loop_;
  Connection& connection_;
};

}  // namespace psd
