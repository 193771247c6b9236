#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"

namespace psd {

/// The calls of who may train the model: joining, and further connections of who has joined. Belongs to the
/// connection's loop.
class TrainingService final : public CountedService<schema::Training> {
 public:
  explicit TrainingService(std::shared_ptr<Connection> connection)
      : CountedService(std::move(connection), true), loop_(connection_->loop()) {}

 protected:
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> attach(AttachContext context) override;

 private:
  EventLoop& loop_;  // the connection's; it keeps it alive
};

}  // namespace psd
