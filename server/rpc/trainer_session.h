#pragma once

#include <memory>
#include <vector>

#include "server/membership/model_start.h"
#include "server/rpc/control.h"
#include "server/rpc/counted_service.h"
#include "server/rpc/pull_server.h"

namespace psd {

/// One trainer's stay: bringing initial values, pulls, pushes, leaving. Its end without leave() is reported
/// as a loss. Belongs to the connection's loop.
class TrainerSession final : public CountedService<schema::Trainer> {
 public:
  TrainerSession(std::shared_ptr<Connection> connection, Joined joined);
  ~TrainerSession() noexcept(false);

 protected:
  kj::Promise<void> pull(PullContext context) override;
  kj::Promise<void> initialize(InitializeContext context) override;
  kj::Promise<void> initialized(InitializedContext context) override;
  kj::Promise<void> awaitModel(AwaitModelContext context) override;
  kj::Promise<void> push(PushContext context) override;
  kj::Promise<void> leave(LeaveContext context) override;
  kj::Promise<void> notice(NoticeContext context) override;

 private:
  /// A shard's update in the making; tells the loop while it is half there.
  struct OpenPush : ShardPush {
    explicit OpenPush(EventLoop& loop) : loop(loop) { loop.updateBegan(); }
    ~OpenPush() { finish(); }
    void finish() {
      if (open) loop.updateEnded();
      open = false;
    }
    EventLoop& loop;
    bool open = true;
  };

  void seen();
  Status checkPush(schema::Trainer::PushParams::Reader params, std::span<const float> gradient) const;
  /// The update that a slice belongs to; a later step replaces an unfinished one.
  Result<std::shared_ptr<OpenPush>> openPush(schema::Trainer::PushParams::Reader params, uint64_t count);
  Status mayInitialize(uint32_t shard, uint64_t offset, std::span<const float> values);
  void countRefusal(const Error& error);
  void pushLanded();

  EventLoop& loop_;  // the connection's; it keeps it alive
  const SessionId session_;
  std::shared_ptr<ServedModel> model_;
  std::shared_ptr<SessionCounters> counters_;
  PullServer pulls_;
  ModelStart::Role role_;
  bool left_ = false;
  uint64_t pushesInFlight_ = 0;                               // slices with the policy
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> allLanded_;  // leave() waits for them
  std::vector<RangeSet> initialValues_;                       // per shard, while this trainer brings them
  std::vector<std::shared_ptr<OpenPush>> pushes_;             // per shard
};

}  // namespace psd
