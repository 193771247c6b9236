#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

/// Operator calls. Belongs to the connection's loop.
class AdminService final : public CountedService<schema::Admin> {
 public:
  /// `administration` outlives it.
  AdminService(std::shared_ptr<Connection> connection, Administration& administration)
      : CountedService(std::move(connection), true), administration_(administration) {}

 protected:
  kj::Promise<void> reload(ReloadContext context) override;
  kj::Promise<void> checkpoint(CheckpointContext context) override;
  kj::Promise<void> newestCheckpoint(NewestCheckpointContext context) override;
  kj::Promise<void> recordWhole(RecordWholeContext context) override;
  kj::Promise<void> removeTrainer(RemoveTrainerContext context) override;
  kj::Promise<void> set(SetContext context) override;
  kj::Promise<void> checkChange(CheckChangeContext context) override;
  kj::Promise<void> events(EventsContext context) override;
  kj::Promise<void> replicate(ReplicateContext context) override;
  kj::Promise<void> switchOver(SwitchOverContext context) override;
  kj::Promise<void> recover(RecoverContext context) override;
  kj::Promise<void> startMove(StartMoveContext context) override;
  kj::Promise<void> giveVersion(GiveVersionContext context) override;
  kj::Promise<void> arrive(ArriveContext context) override;
  kj::Promise<void> moveTerms(MoveTermsContext context) override;
  kj::Promise<void> publish(PublishContext context) override;
  kj::Promise<void> rollBack(RollBackContext context) override;
  kj::Promise<void> stop(StopContext context) override;

 private:
  std::string callerText() const { return connection_->caller().callerText(); }
  /// Feeds a follower until either side is gone.
  void feed(ReplicaController::Admitted admitted, kj::Own<FollowerLink> link, EventLoop& loop);

  Administration& administration_;
  bool follows_ = false;  // an events() call is waiting
};

}  // namespace psd
