#pragma once

#include <memory>

#include "server/rpc/counted_service.h"
#include "server/rpc/pull_calls.h"
#include "server/service/trainer_service.h"

namespace psd {

/// A TrainerService as a Cap'n Proto capability: translates calls and answers and releases messages. Belongs
/// to the connection's loop; calls in progress keep it alive after the connection is closed.
class TrainerSession final : public CountedService<schema::Trainer>, private ConnectedTrainer {
 public:
  TrainerSession(std::shared_ptr<Connection> connection, std::unique_ptr<TrainerService> service);
  ~TrainerSession() noexcept(false) override;

 protected:
  kj::Promise<void> pull(PullContext context) override;
  kj::Promise<void> pullState(PullStateContext context) override;
  kj::Promise<void> restoreState(RestoreStateContext context) override;
  kj::Promise<void> restored(RestoredContext context) override;
  kj::Promise<void> initialize(InitializeContext context) override;
  kj::Promise<void> initialized(InitializedContext context) override;
  kj::Promise<void> awaitModel(AwaitModelContext context) override;
  kj::Promise<void> push(PushContext context) override;
  kj::Promise<void> openRing(OpenRingContext context) override;
  kj::Promise<void> pushShared(PushSharedContext context) override;
  kj::Promise<void> pullRows(PullRowsContext context) override;
  kj::Promise<void> pushRows(PushRowsContext context) override;
  kj::Promise<void> pushRowsShared(PushRowsSharedContext context) override;
  kj::Promise<void> pullRowsShared(PullRowsSharedContext context) override;
  kj::Promise<void> openDeviceRing(OpenDeviceRingContext context) override;
  kj::Promise<void> pushFromDevice(PushFromDeviceContext context) override;
  kj::Promise<void> pullToDevice(PullToDeviceContext context) override;
  kj::Promise<void> leave(LeaveContext context) override;
  kj::Promise<void> notice(NoticeContext context) override;
  kj::Promise<void> keepAlive(KeepAliveContext context) override;
  kj::Promise<void> takeSamples(TakeSamplesContext context) override;
  kj::Promise<void> report(ReportContext context) override;
  kj::Promise<void> setBuffers(SetBuffersContext context) override;
  kj::Promise<void> buffers(BuffersContext context) override;
  kj::Promise<void> roundDue(RoundDueContext context) override;
  kj::Promise<void> progress(ProgressContext context) override;
  kj::Promise<void> formAveragingGroup(FormAveragingGroupContext context) override;
  kj::Promise<void> quiesce(QuiesceContext context) override;

 private:
  void connectionClosed() override { service_->disconnected(); }
  void extendLease() override { service_->extendLease(); }
  bool lost() const override { return service_->lost(); }
  /// Parks a call that may wait for long: releases its message.
  template <class T, class Context>
  kj::Promise<T> park(Context context, kj::Promise<T> waiting);
  kj::Promise<void> writeProgress(ProgressContext context, bool settled);
  /// The gradient of a push carried in the message.
  Result<Gradient> gradientIn(schema::Trainer::PushParams::Reader params) const;
  /// The gradient of a row push.
  Result<Gradient> gradientIn(schema::Trainer::PushRowsParams::Reader params, const RowIds& rows) const;
  /// Answers a push with `gradient`, wherever it lies; `deviceRing` and `rows`: see PushSlice.
  template <class Context>
  kj::Promise<void> takePush(Context context, const Result<Gradient>& gradient,
                             std::shared_ptr<const void> deviceRing = nullptr,
                             std::optional<OwnedRowRuns> rows = {});
  /// Whether the peer may open a ring; `what` names it in the error.
  Status mayShare(const char* what);

  const std::unique_ptr<TrainerService> service_;
  PullCalls pulls_;
};

}  // namespace psd
