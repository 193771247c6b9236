#include "trainer/executor/remote/remote_client.h"

#include <utility>

#include "common/types/stopwatch.h"
#include "trainer/client/api/failed_call.h"

namespace psd {
namespace {

/// A call whose answer is available already.
template <class T>
class CompletedCall final : public Pending<T>::Impl {
 public:
  explicit CompletedCall(Result<T> answer) : answer_(std::move(answer)) {}
  bool done() const override { return true; }
  Result<T> wait() override { return std::move(answer_); }

 private:
  Result<T> answer_;
};

Error refused(const char* what) {
  return {ErrorCode::invalidArgument, std::string("an executor's trainer does not ") + what};
}

}  // namespace

Result<JoinInfo> RemoteClient::join(const Membership& membership, const ModelSpec&,
                                    const std::function<ConstArenaValues()>&) {
  PSD_ASSIGN_OR_RETURN(const RemoteJoin joined, steps_.join(membership));
  JoinInfo info;
  info.policy = joined.policy;
  info.device = joined.device;
  info.shardCount = joined.shards;
  info.serverVersion = steps_.module().version;
  info.pullTransport = info.pushTransport = "the executor";
  info.rank = joined.rank;
  info.worldSize = joined.worldSize;
  return info;
}

Result<JoinInfo> RemoteClient::observe(const ModelSpec&) { return refused("observe"); }

Pending<PullInfo> RemoteClient::pull(ArenaValues, RowBatch*) {
  return Pending<PullInfo>(std::make_unique<CompletedCall<PullInfo>>(PullInfo()));
}

Pending<PushInfo> RemoteClient::push(Step step, ConstArenaValues, GradientInfo behind,
                                     const std::vector<Version>&, const RowBatch*) {
  const Stopwatch stopwatch;
  const Result<StepResult> done = steps_.step(step, behind.samples);
  if (!done.ok()) return failedCall<PushInfo>(done.error());
  PushInfo info;
  info.staleness = done->staleness;
  info.outcome = done->outcome;
  info.seconds = stopwatch.seconds();
  return Pending<PushInfo>(std::make_unique<CompletedCall<PushInfo>>(std::move(info)));
}

std::unique_ptr<PartialPush> RemoteClient::beginPush(Step, ConstArenaValues, GradientInfo,
                                                     const std::vector<Version>&, const RowBatch*) {
  return std::make_unique<FailedPush>(refused("push in parts"));
}

Result<PingInfo> RemoteClient::ping(uint64_t, uint32_t) { return refused("ping"); }

}  // namespace psd
