#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/types/named_value.h"
#include "server/pull/pull_service.h"
#include "server/pull/state_pulls.h"
#include "server/push/push_server.h"
#include "server/service/buffers_intake.h"
#include "server/service/control_loop.h"
#include "server/service/incoming_state.h"
#include "server/service/initial_values.h"
#include "server/service/trainer_rings.h"

namespace psd {

/// Samples for a trainer's step and how to weigh their gradient.
struct SamplesForStep : Samples {
  /// By shard, whether the trainer itself scales its gradient by the number of samples; empty if the trainer
  /// chose the number.
  std::vector<bool> scaledByTrainer;
  bool mixed = false;  ///< some configured groups weigh gradients, others do not
};

/// Unsolicited notice to a trainer: the daemon ends, or the model is about to move.
struct Notice {
  std::optional<EndNotice> end;
  MoveNotice move;
};

/// Training progress at this daemon. A value type.
struct ProgressHere {
  std::vector<Version> versions;  ///< of each block
  std::vector<Version> began;     ///< ServedModel::began()
  RunProgress run;
};

/// One trainer's session over one connection, or within this process: initial values, pulls, pushes, samples,
/// leaving. Independent of protocol. If it ends without leave() the coordinator is notified, unless it is a
/// further connection.
///
/// Belongs to one event loop; callers keep it alive until their promises are done or dropped.
class TrainerService {
 public:
  /// `loop` and `control` outlive it.
  TrainerService(EventLoop& loop, ControlLoop& control, const SessionGrant& grant,
                 const ParameterHost::Place& place);
  ~TrainerService() noexcept(false);
  TrainerService(const TrainerService&) = delete;
  TrainerService& operator=(const TrainerService&) = delete;

  /// Renews the lease. ErrorCode::sessionEnded if the session has ended here.
  Status renewLease();
  /// Renews the lease; whether this trainer may pull and push now.
  Status mayTrain();
  /// The connection is gone or was dropped; the trainer may reconnect.
  void disconnected();
  /// The event loop was stalled; the trainer's lease is extended by that time.
  void extendLease();
  /// Whether the trainer was lost, or continues over another connection.
  bool lost() const { return !left_ && !attachment_.isCurrent(); }

  /// Writes a slice of the initial values, from the initializer, in the shard's dtype. `values` must stay
  /// valid until it resolves.
  kj::Promise<Status> initialize(uint32_t shard, uint64_t offset, std::span<const std::byte> values);
  /// All initial values were sent; they are the trainer's at `step` (0: as it started). Resolves when
  /// training may start.
  kj::Promise<Status> initialized(Step step);
  /// Whether the trainer must initialize the model; waits until that is decided or the values are complete.
  /// One call at a time.
  kj::Promise<Result<ModelInitialization::Role>> awaitModel();

  /// For slices admitted by mayTrain().
  PullService& pulls() { return pulls_; }
  StatePulls& states() { return states_; }
  /// One slice of the values and the optimizer state that restored() puts into the model; see IncomingState.
  Status restoreState(uint32_t shard, std::string_view state, uint64_t offset, std::span<const float> values);
  /// All slices were sent; `steps`, by shard: updates that the optimizer has made. Resolves when the model
  /// has the state, durably.
  kj::Promise<Status> restored(const std::vector<uint64_t>& steps);

  /// Values in the dtype of a shard; contents are not checked. ErrorCode::badSlice if the bytes are no such
  /// values. `bytes` must stay valid as long as the result.
  Result<Gradient> valuesOf(uint32_t shard, std::span<const std::byte> bytes) const;
  /// Decodes a pushed gradient with the negotiated codec, or with topk; contents are not checked.
  /// ErrorCode::invalidArgument for another codec. `bytes` must stay valid as long as the gradient.
  Result<Gradient> gradientOf(std::string_view codec, std::span<const std::byte> bytes, uint64_t count) const;
  /// Like gradientOf(), for a gradient of rows; sparse codecs do not support rows.
  Result<Gradient> gradientOfRows(std::string_view codec, std::span<const std::byte> bytes,
                                  const RowIds& rows) const;
  /// A gradient in the session's host ring.
  Result<Gradient> gradientInRing(uint64_t at, uint64_t count) const;
  /// A gradient of rows in the session's host ring. The rows are not checked.
  Result<Gradient> rowGradientInRing(uint64_t at, const RowIds& rows) const;
  struct DeviceRingGradient {
    Gradient gradient;
    std::shared_ptr<const void> ring;  ///< see PushSlice::ring
  };
  Result<DeviceRingGradient> gradientInDeviceRing(uint32_t shard, uint64_t at, uint64_t count) const;
  /// The answer to one slice, complete except for the attachment; see PushServer::push(). The slice's
  /// resources are dropped on the push server's home loop; see isPushLoop().
  kj::Promise<PushReply> push(PushSlice slice);
  /// Counts a push that is rejected before it becomes a slice.
  PushReply refused(const Error& error) const;
  /// Whether this loop is the home of the trainer's pushes.
  bool isPushLoop() const { return place_.pushes->isHome(); }

  /// The rings of the session; call renewLease() before opening one.
  TrainerRings& rings() { return rings_; }

  /// When the round of the parameters of this version closes without the trainer; see
  /// RoundNotices::roundDue() of the group whose first shard is `shard`. May wait; a newer call ends the
  /// previous one.
  kj::Promise<Result<RoundDue>> roundDue(Version version, uint32_t shard);

  /// The next averaging group; see AveragingPolicy::formAveragingGroup(). May wait.
  kj::Promise<Result<FormedGroup>> formAveragingGroup(uint64_t after, const AveragingMember& where);

  /// Upper bound on the size of the answer to progress(), in bytes.
  uint64_t progressBytes() const { return 256 + 2 * sizeof(Version) * place_.model->store->blockCount(); }
  /// Training progress, for a bridge; ErrorCode::invalidArgument for a trainer. `settled`: resolves once all
  /// present updates are durable.
  kj::Promise<Result<ProgressHere>> progress(bool settled);

  /// Assigns samples for a step. May wait; one call at a time.
  kj::Promise<Result<SamplesForStep>> takeSamples(const SamplesRequest& request);
  /// Takes a slice of the model's buffers; see BuffersIntake.
  kj::Promise<Status> setBuffers(uint64_t size, uint64_t offset, std::span<const std::byte> bytes);
  /// Records metrics reported by the trainer. One call at a time.
  kj::Promise<Status> report(uint64_t step, std::vector<NamedValue> values);
  /// The trainer is done and leaves. Resolves once that is durable.
  kj::Promise<Status> leave();
  /// Resolves when the daemon ends or the model is about to move, by a move other than number `move`. One
  /// call at a time.
  kj::Promise<Result<Notice>> notice(uint64_t move);
  /// The trainer makes no call until it resolves; see MoveQuiescence::quiesce(). One call at a time.
  kj::Promise<MoveQuiescence::Answer> quiesce(uint64_t move, std::string cannot);

 private:
  /// Marks a call as waiting until its promise is done or dropped.
  template <class T>
  static kj::Promise<T> park(bool& parked, kj::Promise<T> waiting);
  /// Resolves once the block's current updates are on disk or held by a standby.
  kj::Promise<void> whenSettled(size_t index);
  std::vector<bool> scaledByTrainer() const;
  bool mixesGroups() const;
  /// Adds an event for an averaging group whose first member is this trainer.
  void reportAveragingGroup(const FormedGroup& group);
  /// Values in rows that have not been checked; rows of unknown tables count nothing.
  uint64_t valueCount(const RowIds& rows) const;

  EventLoop& loop_;
  ControlLoop& control_;
  const SessionId session_;
  const bool bridges_;  // the session of a bridge
  const std::shared_ptr<SessionCounters> counters_;
  const Attachment attachment_;
  const bool further_;
  const ParameterHost::Place place_;
  const Codec* const codec_;  // of pushes, besides float32; null: none
  PullService pulls_;
  TrainerRings rings_;
  InitialValues initialValues_;
  BuffersIntake buffers_;
  StatePulls states_;
  IncomingState incoming_;
  ModelInitialization::Role role_;
  bool left_ = false, reported_ = false;
  bool awaitsModel_ = false, awaitsSamples_ = false, awaitsNotice_ = false, reports_ = false;  // in a call
};

}  // namespace psd
