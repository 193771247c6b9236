#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/control/control.h"
#include "server/membership/model_start.h"
#include "server/push/device_ring.h"
#include "server/push/push_ring.h"
#include "server/push/push_server.h"
#include "server/rpc/counted_service.h"
#include "server/rpc/pull_calls.h"

namespace psd {

/// One trainer's stay, as far as it goes over one connection: bringing initial values, pulls, pushes,
/// leaving. Its end without leave() is reported, but for that of a further connection. Belongs to the
/// connection's loop; calls in progress keep it after the connection is closed.
class TrainerSession final : public CountedService<schema::Trainer>, private ConnectedTrainer {
 public:
  TrainerSession(std::shared_ptr<Connection> connection, const Joined& joined);
  ~TrainerSession() noexcept(false) override;

 protected:
  kj::Promise<void> pull(PullContext context) override;
  kj::Promise<void> initialize(InitializeContext context) override;
  kj::Promise<void> initialized(InitializedContext context) override;
  kj::Promise<void> awaitModel(AwaitModelContext context) override;
  kj::Promise<void> push(PushContext context) override;
  kj::Promise<void> openRing(OpenRingContext context) override;
  kj::Promise<void> pushShared(PushSharedContext context) override;
  kj::Promise<void> openDeviceRing(OpenDeviceRingContext context) override;
  kj::Promise<void> pushFromDevice(PushFromDeviceContext context) override;
  kj::Promise<void> pullToDevice(PullToDeviceContext context) override;
  kj::Promise<void> leave(LeaveContext context) override;
  kj::Promise<void> notice(NoticeContext context) override;
  kj::Promise<void> keepAlive(KeepAliveContext context) override;
  kj::Promise<void> takeSamples(TakeSamplesContext context) override;

 private:
  void connectionClosed() override { reportEnd(); }
  void excuseSilence() override {
    if (epoch_->attachment == attachment_) counters_->heard();
  }
  bool lost() const override { return !left_ && epoch_->attachment != attachment_; }
  void reportEnd();
  /// sessionEnded where there is none any more.
  Status renewLease();
  /// The same, and whether this trainer may pull and push now.
  Status mayTrain();
  /// Parks a call, of whose kind `parked` says whether one is: its message is let go.
  template <class T, class Context>
  kj::Promise<T> park(Context context, bool& parked, kj::Promise<T> waiting);
  /// What a push holds, not checked; fails when it names a codec that was not agreed.
  Result<Gradient> gradientIn(schema::Trainer::PushParams::Reader params) const;
  /// Answers a push whose slice is `gradient`, wherever it lies; `deviceRing`: see PushSlice::ring.
  template <class Context>
  kj::Promise<void> takePush(Context context, const Result<Gradient>& gradient,
                             std::shared_ptr<const void> deviceRing = nullptr);
  Result<std::shared_ptr<SharedMemory>> makeRing(uint64_t bytes);
  Result<std::shared_ptr<DeviceRing>> makeDeviceRing(uint32_t device, uint64_t bytes);
  /// The one of the device that has the shard.
  Result<std::shared_ptr<DeviceRing>> deviceRingOf(uint32_t shard) const;
  /// Where the trainer itself is to weigh its gradient by the samples behind it.
  void tellUnweighted(schema::SamplesResult::Dealt::Builder dealt) const;
  Status mayInitialize(uint32_t shard, uint64_t offset, std::span<const float> values);
  /// A slice of the initial values is in the model, or failed to be.
  void initialValuesWritten(const Status& status);

  EventLoop& loop_;  // the connection's; it keeps it alive
  const SessionId session_;
  std::shared_ptr<ServedModel> model_;
  std::shared_ptr<SessionCounters> counters_;
  const Codec* const codec_;  // of pushes, beside float32; null: none
  const std::shared_ptr<const SessionEpoch> epoch_;
  const uint32_t attachment_;
  const bool further_;
  PullCalls pulls_;
  const std::shared_ptr<PushServer> pushes_;
  std::unique_ptr<PushRing> ring_;                        // once opened
  std::vector<std::shared_ptr<DeviceRing>> deviceRings_;  // by device, once opened
  ModelStart::Role role_;
  bool left_ = false, reported_ = false;
  bool awaitsModel_ = false, awaitsSamples_ = false, awaitsNotice_ = false;  // in a parked call
  // While this trainer brings the initial values:
  std::vector<RangeSet> initialValues_;  // per shard, those that came
  uint64_t writing_ = 0;                 // slices of them that a device is at work on
  std::optional<Error> notWritten_;      // why some are not in the model
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waitForWriting_;
};

}  // namespace psd
