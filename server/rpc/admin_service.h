#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"

namespace psd {

/// The operator's calls: status, reload and stop. Belongs to the connection's loop.
class AdminService final : public CountedService<schema::Admin> {
 public:
  explicit AdminService(std::shared_ptr<Connection> connection)
      : CountedService(std::move(connection), true), loop_(connection_->loop()) {}

 protected:
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> reload(ReloadContext context) override;
  kj::Promise<void> stop(StopContext context) override;

 private:
  EventLoop& loop_;     // the connection's; it keeps it alive
  bool asked_ = false;  // for the status, which is not there yet
};

}  // namespace psd
