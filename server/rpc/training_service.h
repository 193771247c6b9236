#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/join_service.h"

namespace psd {

/// Calls for trainers: joining, and further connections of joined trainers. Belongs to the connection's loop.
class TrainingService final : public CountedService<schema::Training> {
 public:
  /// `control` outlives it.
  TrainingService(std::shared_ptr<Connection> connection, ControlLoop& control)
      : CountedService(std::move(connection), true),
        joins_(connection_->loop().shared_from_this(), control) {}

 protected:
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> attach(AttachContext context) override;

 private:
  void answer(JoinContext context, JoinedTrainer joined);

  JoinService joins_;
};

}  // namespace psd
