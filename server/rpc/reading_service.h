#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"
#include "server/service/join_service.h"

namespace psd {

/// The calls of who may read the model and look at the daemon. Belongs to the connection's loop.
class ReadingService final : public CountedService<schema::Reading> {
 public:
  /// `control` and `administration` outlive it.
  ReadingService(std::shared_ptr<Connection> connection, ControlLoop& control, Administration& administration)
      : CountedService(std::move(connection), true),
        joins_(connection_->loop().shared_from_this(), control),
        administration_(administration) {}

 protected:
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> hotRows(HotRowsContext context) override;
  kj::Promise<void> takeover(TakeoverContext context) override;
  kj::Promise<void> waiters(WaitersContext context) override;
  kj::Promise<void> moved(MovedContext context) override;

 private:
  JoinService joins_;
  Administration& administration_;
  bool asked_ = false;  // for the status, or for who waits, which is not there yet
  bool waits_ = false;  // for a takeover
  bool hears_ = false;  // when the model has moved
};

}  // namespace psd
