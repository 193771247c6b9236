#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/join_service.h"

namespace psd {

/// The calls of who may read the model. Belongs to the connection's loop.
class ReadingService final : public CountedService<schema::Reading> {
 public:
  /// `control` outlives it.
  ReadingService(std::shared_ptr<Connection> connection, ControlLoop& control)
      : CountedService(std::move(connection), true),
        joins_(connection_->loop().shared_from_this(), control) {}

 protected:
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }

 private:
  JoinService joins_;
};

}  // namespace psd
