#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"

namespace psd {

/// The calls of who may read the model. Belongs to the connection's loop.
class ReadingService final : public CountedService<schema::Reading> {
 public:
  explicit ReadingService(std::shared_ptr<Connection> connection)
      : CountedService(std::move(connection), true), loop_(connection_->loop()) {}

 protected:
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }

 private:
  EventLoop& loop_;  // the connection's; it keeps it alive
};

}  // namespace psd
