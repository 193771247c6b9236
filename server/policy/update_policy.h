#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kj/async.h>

#include "common/types/all_reduce.h"
#include "common/types/local_steps.h"
#include "common/types/push_outcome.h"
#include "common/types/range_set.h"
#include "server/membership/trainer.h"
#include "server/metrics/round_metrics.h"
#include "server/policy/gathered_gradient.h"
#include "server/policy/gathered_rows.h"
#include "server/policy/rounds_report.h"
#include "server/policy/snapshot_room.h"
#include "server/store/parameter_store.h"

namespace psd {

/// What a policy rules: the shards and row shards of one parameter group, and the means that it begins with.
/// Immutable.
struct PolicyScope {
  ParameterStore& store;
  uint32_t group = 0;
  std::shared_ptr<StagingPool> staging;  ///< for gathered gradients
  /// Memory for copies of shards.
  std::shared_ptr<SnapshotRoom> snapshots = std::make_shared<SnapshotRoom>(ByteBudget::make(UINT64_MAX));
  bool started = false;  ///< training is under way: nobody waits for trainers to begin together
  /// An earlier daemon began the run, and its trainers come back within this time: so long they are waited
  /// for at most. Nothing: the run begins here.
  std::optional<std::chrono::milliseconds> goesOn = {};
  uint32_t trainersBefore = 0;  ///< with goesOn: so many trainers' gradients made the newest version
  bool recorded = false;        ///< updates go to a log, on this machine's disk or another daemon's
  /// Where closed rounds of trainers are noted; nothing: nobody asks.
  std::optional<RoundMetrics> roundMetrics = {};

  std::vector<Shard*> shards() const;
  std::vector<RowShard*> rowShards() const;
  /// Shards and row shards in all: so many parts has a gradient here.
  size_t blockCount() const { return shards().size() + rowShards().size(); }
};

struct PushAnswer {
  PushOutcome outcome = PushOutcome::received;
  Version version;  ///< of the shard
  uint64_t staleness = 0;
  uint64_t updates = 0;  ///< updates of shards that this slice completed
  /// The newest update's number in the log; no trainer is told before that update is on the disk.
  uint64_t logged = 0;

  bool applied() const { return outcome == PushOutcome::applied; }
};

/// One trainer's gradient for one shard or row shard while its slices come in. Used on the home loop of the
/// trainer's pushes, where it may outlive a session; a policy may keep what it needs in it.
struct ShardPush {
  TrainerRef trainer;
  Step step;
  Version basis;            ///< what the gradient was computed from
  uint32_t samples = 0;     ///< examples behind the gradient
  uint32_t localSteps = 0;  ///< that the trainer took by itself; 0: it is the gradient of one step
  SharedAverage shares;     ///< who else's gradients it is the average of, as the policy says
  uint64_t total = 0;   ///< elements (or rows) that the trainer says the part has; for a Shard all of its own
  RangeSet arrived;     ///< elements (or rows) whose slices were accepted, the current one included
  uint64_t taken = 0;   ///< elements (or rows) that the policy has gathered or applied, and did not refuse
  uint64_t number = 0;  ///< the shard's update number, once the policy has taken one
  size_t known = 0;     ///< shards of its group whose parts of this step are decided already, and do not come
  uint64_t staleness = 0;
  bool dropped = false;       ///< the policy takes nothing of it
  GatheredGradient gathered;  ///< so far, for policies that apply a shard whole
  GatheredRows gatheredRows;  ///< the same of a row shard
  /// Left here by UpdatePolicy::push(), which then answers `received`, where the gradient must wait for other
  /// trainers: what becomes of it. Whoever pushes takes it, and may push other slices meanwhile.
  kj::Maybe<kj::Promise<Result<PushAnswer>>> pendingAnswer;
};

/// One trainer's or observer's reading of one shard over several slices. Owned by its PullService, on the
/// event loop of its connection.
struct ShardPull {
  std::optional<TrainerRef> trainer;  ///< nothing: an observer
  uint64_t pull = 0;                  ///< the reader's number for it
  uint64_t delivered = 0;             ///< elements handed out
  kj::Maybe<kj::ForkedPromise<Result<std::shared_ptr<const ShardSnapshot>>>> snapshot;
};

/// The source of an update, for the log, that this push is.
inline UpdateSource sourceOf(const ShardPush& push) {
  return {push.trainer.rank, push.samples, push.trainer.incarnation, push.step, push.basis, push.staleness};
}

/// Staleness τ at this moment: updates that the block has applied since the version the gradient was
/// computed from.
inline uint64_t stalenessOf(const ParameterBlock& block, Version basis) {
  const uint64_t now = block.version().value;
  return now > basis.value ? now - basis.value : 0;
}

struct PullAnswer {
  Version version;
  ReadView view;
};

/// What pulled rows are.
struct RowsAnswer {
  Version version;     ///< of the shard, at least
  uint64_t known = 0;  ///< rows that some push has touched
};

/// Whom a policy waits for, for status and people.
struct Waiting {
  std::string what;                ///< "round 17", "bound 4"
  std::vector<SessionId> waiters;  ///< who is held up
  struct For {
    SessionId session;
    std::chrono::steady_clock::time_point since;
  };
  std::vector<For> awaited;
  uint32_t joins = 0;  ///< trainers that must come first
};

/// Decides when and how gradients become part of the model and what a reader sees. One object serves
/// all trainers and the shards of its PolicyScope.
///
/// Thread-safe: called from every event loop, each with its own Lane, ShardPush and ShardPull. Answers
/// come as promises of the calling loop; waiting is parking a promise, never blocking. The spans and
/// references given stay valid until the promise resolves. Slices were checked against shard and
/// grain, and every gradient value is finite, but what lies in memory that the trainer can still write to: of
/// that a policy checks its copy. A policy that gathers slices decodes them with copyTo(); one that takes
/// them on the device hands them to the storage as they are. Who waits for a trainer learns from leave() that
/// it is gone.
class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  virtual std::string_view name() const = 0;
  /// Whether readers may read the weights in place while updates change them: what pull() gives promises no
  /// more than that.
  virtual bool readsLive() const { return false; }
  /// Whether push() applies slices one by one, without a lock: a part of which some slices are missing is in
  /// the model as far as it came, and the shard's lock keeps no update away from who reads.
  virtual bool appliesSlices() const { return false; }
  /// Whether push() takes gradients that are in the memory of the shard's device.
  virtual bool takesDeviceGradients() const { return false; }

  /// Whether push() completes a push that some elements of a divided shard hold already, by applying it to
  /// the other elements alone.
  virtual bool completesPushes() const { return false; }

  /// A trainer is in, before its first push or pull. This and leave() come by turns for a session, take
  /// effect at once, and resolve when what follows from it is done.
  virtual kj::Promise<void> join(const TrainerRef&) { return kj::READY_NOW; }
  /// A trainer left or is lost. Nobody waits for what it pushes after that.
  virtual kj::Promise<void> leave(SessionId) { return kj::READY_NOW; }

  /// Takes one slice of a gradient. `push.arrived` already holds it.
  virtual kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                               Gradient gradient) = 0;
  /// Reads one slice.
  virtual kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                               uint64_t count) = 0;

  /// Reads one slice, as pull() does, into memory of the shard's device that another process maps too. Gives
  /// the version.
  virtual kj::Promise<Result<Version>> pullTo(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                              std::span<float> onDevice);

  /// Takes one slice of a difference of parameters, which a bridge pushes; otherwise as push(). Refused where
  /// PolicyTraits::differences does not say that the policy takes any.
  virtual kj::Promise<Result<PushAnswer>> pushDifference(Shard& shard, Lane& lane, ShardPush& push,
                                                         uint64_t offset, Gradient slice);

  /// Takes one slice of a row shard's part, whose first row has the number `first` in it; otherwise as
  /// push(). The slice was checked by RowShard::check(). Refused where the policy is not for tables, which
  /// the configuration lets nobody ask for.
  virtual kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                                   RowGradient slice);
  /// Where pullRows() would let this trainer wait for others as things are: resolves when it need not any
  /// more. So what the call holds can be let go of meanwhile.
  virtual kj::Maybe<kj::Promise<Status>> waitToPullRows(const std::optional<TrainerRef>&) { return nullptr; }
  /// out = the rows' values, row after row. `trainer`: who asks; nothing: an observer.
  virtual kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                                   RowIds rows, std::span<float> out);

  /// When the round that a trainer computes for, from parameters of this version of the group's first block,
  /// is about to close without it, or has closed; where there are no rounds, when it is to push what it has
  /// ("closing"). ErrorCode::invalidArgument where nobody is to push before its time.
  virtual kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version);
  /// The next group of trainers that average gradients, once it is formed with this one in it, which was in
  /// the group of generation `after`; a newer call of a session ends the one before.
  /// ErrorCode::invalidArgument where the policy has trainers push what they compute.
  virtual kj::Promise<Result<FormedGroup>> formGroup(SessionId session, uint64_t after,
                                                     const AveragingMember& where);
  /// Whether trainers average the gradients of tensors before one of them pushes; they push those of rows
  /// apart.
  virtual bool averages() const { return false; }
  /// The rounds that it makes; nothing: it makes none.
  virtual std::optional<RoundsReport> rounds() const { return {}; }

  /// The waits of trainers for others, as they are now.
  virtual std::vector<Waiting> waiting() const { return {}; }
  /// Whether tick() must be called.
  virtual bool ticks() const { return false; }
  /// Does what is due by the clock; called every 20 ms or so. Resolves when that is done.
  virtual kj::Promise<void> tick(std::chrono::steady_clock::time_point) { return kj::READY_NOW; }
  /// Whether trainers wait no longer for each other to come before they begin.
  virtual bool started() const { return true; }
  /// The lock that is held while an update of several shards is made; who holds it keeps such an update from
  /// beginning. Null: each update is of one shard. The lock lives as long as the policy.
  virtual ShardLock* groupLock() { return nullptr; }
  /// Resolves when nothing is being applied. To be called while no gradient begins or is half there.
  /// Gradients that wait for other trainers go on waiting.
  virtual kj::Promise<void> quiesce() { return kj::READY_NOW; }
  /// Answers the gradients that wait for others, without waiting for more, since another policy is to take
  /// over. To be called while no gradient begins or is half there. Resolves when these gradients are part of
  /// the model.
  virtual kj::Promise<void> drain() { return kj::READY_NOW; }
  /// Another policy has taken over: no caller waits here any more, now or later.
  virtual void retire() {}
  /// Answers every wait with `reason`, waits of now and waits that would begin later: the daemon ends.
  virtual void endWaits(const Error&) {}

 private:
  Error noRows() const;
};

}  // namespace psd
