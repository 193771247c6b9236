#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/types/named_value.h"
#include "server/pull/pull_service.h"
#include "server/push/push_server.h"
#include "server/service/control_loop.h"
#include "server/service/initial_values.h"
#include "server/service/trainer_rings.h"

namespace psd {

/// Samples for a trainer's step, and how it is to weigh their gradient.
struct SamplesForStep : Samples {
  /// By shard, whether the trainer itself weighs its gradient by the number of samples; empty where the
  /// trainer chose the number.
  std::vector<bool> unweighted;
  bool mixed = false;  ///< some groups of the configuration weigh gradients, others do not
};

/// What a trainer is told unasked: of the daemon's end, or of a move of the model.
struct Notice {
  std::optional<EndNotice> end;
  MoveNotice move;
};

/// How far training is at this daemon. A value type.
struct ProgressHere {
  std::vector<Version> versions;  ///< of each block
  std::vector<Version> began;     ///< ServedModel::began()
  RunProgress run;
};

/// One trainer's session as far as it goes over one connection, or is served in this process: bringing the
/// first values, pulls, pushes, samples, leaving. In plain values, whatever protocol the calls come over. Its
/// end without leave() is reported, but for that of a further connection.
///
/// Belongs to one event loop; who has called it keeps it until the promises are done or dropped.
class TrainerService {
 public:
  /// `loop` and `control` outlive it.
  TrainerService(EventLoop& loop, ControlLoop& control, const SessionGrant& grant,
                 const ParameterHost::Place& place);
  ~TrainerService() noexcept(false);
  TrainerService(const TrainerService&) = delete;
  TrainerService& operator=(const TrainerService&) = delete;

  /// The trainer was heard of. ErrorCode::sessionEnded where there is no session of it any more here.
  Status renewLease();
  /// Renews the lease; whether this trainer may pull and push now.
  Status mayTrain();
  /// The connection is gone, or dropped; the trainer may come back over another one.
  void disconnected();
  /// The daemon has not listened: silence is not the trainer's.
  void excuseSilence();
  /// Whether the trainer counts as lost, or goes on over another connection.
  bool lost() const { return !left_ && !attachment_.isCurrent(); }

  /// A slice of the first values, of the trainer that was asked for them. `values` stay readable until it
  /// resolves.
  kj::Promise<Status> initialize(uint32_t shard, uint64_t offset, std::span<const float> values);
  /// All values were sent, those that the trainer had at that step (0: as it began); resolves when trainers
  /// may go.
  kj::Promise<Status> initialized(Step step);
  /// Whether the trainer is to bring the values; waits until that is known or the values are there. One call
  /// at a time.
  kj::Promise<Result<ModelStart::Role>> awaitModel();

  /// For slices that mayTrain() lets pass.
  PullService& pulls() { return pulls_; }

  /// What a push holds, in the codec that was agreed on, or without one; not checked.
  /// ErrorCode::invalidArgument for another codec. `bytes` stay readable as long as the gradient.
  Result<Gradient> gradientOf(std::string_view codec, std::span<const std::byte> bytes, uint64_t count) const;
  /// The gradient of rows that a push holds, as gradientOf() gives one of values; codecs that leave values
  /// out do not suit rows.
  Result<Gradient> gradientOfRows(std::string_view codec, std::span<const std::byte> bytes,
                                  const RowIds& rows) const;
  /// A gradient that lies in the session's ring of the host, or of the shard's device.
  Result<Gradient> gradientInRing(uint64_t at, uint64_t count) const;
  /// A gradient of rows that lies in the session's ring of the host. The rows are not checked.
  Result<Gradient> rowGradientInRing(uint64_t at, const RowIds& rows) const;
  struct InDeviceRing {
    Gradient gradient;
    std::shared_ptr<const void> ring;  ///< see PushSlice::ring
  };
  Result<InDeviceRing> gradientInDeviceRing(uint32_t shard, uint64_t at, uint64_t count) const;
  /// The answer to one slice, of which all is set but the attachment; see PushServer::push(). What it holds
  /// is dropped on the loop that pushesHere() tells of.
  kj::Promise<PushReply> push(PushSlice slice);
  /// Counts a slice that is refused before it is one.
  PushReply refused(const Error& error) const;
  /// Whether pushes are worked on by the loop that this belongs to.
  bool pushesHere() const { return place_.pushes->isHome(); }

  /// The rings of the session; to be opened after renewLease().
  TrainerRings& rings() { return rings_; }

  /// When the round of the parameters of this version closes without the trainer; see
  /// UpdatePolicy::roundDue() of the group that the shard is the first of. May wait; a newer call ends the
  /// one before.
  kj::Promise<Result<RoundDue>> roundDue(Version version, uint32_t shard);

  /// The next group of trainers that average gradients; see UpdatePolicy::formGroup(). May wait.
  kj::Promise<Result<FormedGroup>> formGroup(uint64_t after, const AveragingMember& where);

  /// What the answer to progress() takes at most.
  uint64_t progressBytes() const { return 256 + 2 * sizeof(Version) * place_.model->store->blockCount(); }
  /// How far training is here, of a bridge; ErrorCode::invalidArgument of a trainer. `settled`: once the
  /// updates that there are cannot be lost any more.
  kj::Promise<Result<ProgressHere>> progress(bool settled);

  /// Samples for a step. May wait; one call at a time.
  kj::Promise<Result<SamplesForStep>> takeSamples(const SamplesRequest& request);
  /// Takes what the trainer tells of its training. One call at a time.
  kj::Promise<Status> report(uint64_t step, std::vector<NamedValue> values);
  /// Says goodbye: the trainer is done. Resolves once a daemon after this one would know.
  kj::Promise<Status> leave();
  /// Resolves when the daemon ends, or the model is about to move, by another move than the one with that
  /// number. One call at a time.
  kj::Promise<Result<Notice>> notice(uint64_t move);
  /// Makes no call until it resolves; see MovePause::stepAside(). One call at a time.
  kj::Promise<MovePause::Answer> stepAside(uint64_t move, std::string cannot);

 private:
  /// Marks a call as waiting until its promise is done or dropped.
  template <class T>
  static kj::Promise<T> park(bool& parked, kj::Promise<T> waiting);
  /// Resolves once the updates that a block has now are on the disk, or held by a standby.
  kj::Promise<void> whenSettled(size_t index);
  std::vector<bool> unweighted() const;
  bool mixesGroups() const;
  /// Adds an event of a group that this trainer is the first of.
  void tellOfGroup(const FormedGroup& group);
  /// Values of rows that nobody has checked; those of tables that there are not count nothing.
  uint64_t valueCount(const RowIds& rows) const;

  EventLoop& loop_;
  ControlLoop& control_;
  const SessionId session_;
  const bool bridges_;  // it is the bridge's
  const std::shared_ptr<SessionCounters> counters_;
  const Attachment attachment_;
  const bool further_;
  const ParameterHost::Place place_;
  const Codec* const codec_;  // of pushes, beside float32; null: none
  PullService pulls_;
  TrainerRings rings_;
  InitialValues initialValues_;
  ModelStart::Role role_;
  bool left_ = false, reported_ = false;
  bool awaitsModel_ = false, awaitsSamples_ = false, awaitsNotice_ = false, reports_ = false;  // in a call
};

}  // namespace psd
