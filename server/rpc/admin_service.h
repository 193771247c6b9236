#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/connection.h"

namespace psd {

/// The operator's calls: status and stop. Belongs to the connection's loop.
class AdminService final : public schema::Admin::Server {
 public:
  explicit AdminService(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)), loop_(connection_->loop()) {}

 protected:
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> stop(StopContext context) override;

 private:
  const std::shared_ptr<Connection> connection_;
  EventLoop& loop_;  // the connection's; it keeps it alive
};

}  // namespace psd
