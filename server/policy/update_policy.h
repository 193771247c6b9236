#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kj/async.h>

#include "common/types/push_outcome.h"
#include "common/types/range_set.h"
#include "server/membership/trainer.h"
#include "server/metrics/round_metrics.h"
#include "server/policy/gathered_gradient.h"
#include "server/policy/gathered_rows.h"
#include "server/policy/snapshot_budget.h"
#include "server/store/parameter_store.h"

namespace psd {

class AveragingPolicy;
class RoundMoments;
class RoundNotices;
class RoundPolicy;
class RowPolicy;

/// The shards and row shards of one parameter group that a policy manages, and the resources it uses.
/// Immutable.
struct PolicyScope {
  ParameterStore& store;
  uint32_t group = 0;
  std::shared_ptr<StagingPool> staging;  ///< for gathered gradients
  /// For copies of shards.
  std::shared_ptr<SnapshotBudget> snapshots = std::make_shared<SnapshotBudget>(ByteBudget::make(UINT64_MAX));
  bool started = false;  ///< training is in progress: rounds do not wait for trainers to start together
  /// The run resumes from a previous daemon, whose trainers are waited for at most this long. nullopt: the
  /// run starts with this daemon.
  std::optional<std::chrono::milliseconds> resumeWithin = {};
  uint32_t previousTrainers =
      0;                  ///< with resumeWithin: the most that contributed to the newest version of any block
  bool recorded = false;  ///< updates go to a log, on local disk or at another daemon
  /// Metrics of closed rounds; nullopt: not recorded.
  std::optional<RoundMetrics> roundMetrics = {};
  std::shared_ptr<RoundMoments> moments = {};  ///< receives the states after rounds; may be null

  std::vector<Shard*> shards() const;
  std::vector<RowShard*> rowShards() const;
  /// Number of shards and row shards, which is the number of parts of a gradient.
  size_t blockCount() const { return shards().size() + rowShards().size(); }
};

struct PushAnswer {
  PushOutcome outcome = PushOutcome::received;
  Version version;  ///< of the shard
  uint64_t staleness = 0;
  uint64_t updates = 0;  ///< number of shard updates that this slice completed
  /// LSN of the newest update; the answer is sent only after that record is durable.
  uint64_t logged = 0;

  bool applied() const { return outcome == PushOutcome::applied; }
};

/// One trainer's gradient for one shard or row shard while its slices arrive. Used on the home loop of the
/// trainer's pushes, where it may outlive a session; policies store their per-part state in it.
struct ShardPush {
  TrainerRef trainer;
  Step step;
  Version basis;            ///< the version the gradient was computed from
  uint32_t samples = 0;     ///< number of samples behind the gradient
  uint32_t localSteps = 0;  ///< local steps taken; 0: it is the gradient of a single step
  uint64_t leadRound = 0;   ///< RoundMoment::number that the trainer gives the round; 0: none
  /// Hyperparameters of the step, which the slices carry; null: the optimizer's own.
  std::shared_ptr<const Hyperparameters> hyperparameters;
  SharedAverage shares;  ///< other trainers whose gradients are in the average; set by the policy
  uint64_t total = 0;    ///< elements (or rows) of the part, as declared by the trainer; for a Shard: all
  RangeSet arrived;      ///< elements (or rows) of accepted slices, including the current one
  uint64_t taken = 0;    ///< number of elements (or rows) that the policy has gathered, applied or dropped
  uint64_t number = 0;   ///< the shard's update number, once the policy has started one
  size_t known = 0;      ///< parts of this step that are already decided and will not arrive
  uint64_t staleness = 0;
  bool dropped = false;       ///< the policy drops the part
  GatheredGradient gathered;  ///< the slices so far, for policies that apply a shard as a whole
  GatheredRows gatheredRows;  ///< likewise for a row shard
  /// Set by UpdatePolicy::push() or RowPolicy::pushRows(), which then answer `received`, if the gradient must
  /// wait for other trainers: the final answer. The caller takes it, and may push other slices meanwhile.
  kj::Maybe<kj::Promise<Result<PushAnswer>>> pendingAnswer;
};

/// One trainer's or observer's read of one shard over several slices. Owned by its PullService, on the event
/// loop of its connection.
struct ShardPull {
  std::optional<TrainerRef> trainer;  ///< nullopt: an observer
  uint64_t pull = 0;                  ///< the reader's id of the pull
  uint64_t delivered = 0;             ///< number of elements returned
  kj::Maybe<kj::ForkedPromise<Result<std::shared_ptr<const ShardSnapshot>>>> snapshot;
};

/// This push as the source of an update, for the log.
inline UpdateSource sourceOf(const ShardPush& push) {
  return {push.trainer.rank, push.samples,   push.trainer.incarnation, push.step,
          push.basis,        push.staleness, push.hyperparameters};
}

/// Current staleness τ: number of updates applied to the block since the version that the gradient was
/// computed from.
inline uint64_t stalenessOf(const ParameterBlock& block, Version basis) {
  const uint64_t now = block.version().value;
  return now > basis.value ? now - basis.value : 0;
}

struct PullAnswer {
  Version version;
  ReadView view;
};

/// A wait of trainers for others, for the status report.
struct Waiting {
  std::string what;                ///< "round 17", "bound 4"
  std::vector<SessionId> waiters;  ///< trainers that wait
  struct For {
    SessionId session;
    std::chrono::steady_clock::time_point since;
  };
  std::vector<For> awaited;
  uint32_t joins = 0;  ///< number of trainers that must join first
};

/// Decides when and how gradients become part of the model and what a reader sees. One object serves all
/// trainers and the shards of its PolicyScope.
///
/// Thread-safe: called from every event loop, each with its own Lane, ShardPush and ShardPull. Answers are
/// promises of the calling loop; a wait parks a promise and never blocks. The spans and references passed in
/// stay valid until the promise resolves. Slices have been checked against shard and grain, and all gradient
/// values are finite, except in memory that the trainer can still write to: there the policy checks its copy.
/// A policy that gathers slices decodes them with copyTo(); one that takes device gradients passes them to
/// the storage unchanged. leave() ends waits for a departed trainer.
class UpdatePolicy {
 public:
  struct Properties {
    /// Readers may read the weights in place while updates change them; pull() is pullLive().
    bool readsLive = false;
    /// push() applies slices individually, without a lock: an incomplete part is in the model as far as it
    /// has arrived, and the shard's lock does not exclude updates.
    bool appliesSlices = false;
    bool takesDeviceGradients = false;  ///< push() accepts gradients in the memory of the shard's device
    /// push() completes a push that some elements of a divided shard already have, by applying it to the
    /// remaining elements only.
    bool completesPushes = false;
    bool takesDifferences = false;  ///< a bridge may change the parameters between updates (takeDifference())
    bool ticks = false;             ///< tick() must be called
  };

  virtual ~UpdatePolicy() = default;

  virtual std::string_view name() const = 0;
  virtual Properties properties() const { return {}; }

  /// A trainer has joined; called before its first push or pull. Calls of join() and leave() alternate for a
  /// session. They take effect immediately; the promise resolves when their consequences are complete.
  virtual kj::Promise<void> join(const TrainerRef&) { return kj::READY_NOW; }
  /// A trainer has departed. Its later pushes are not waited for.
  virtual kj::Promise<void> leave(SessionId) { return kj::READY_NOW; }

  /// Takes one slice of a gradient. `push.arrived` already includes it.
  virtual kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                               Gradient gradient) = 0;
  /// Reads one slice.
  virtual kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                               uint64_t count) = 0;

  /// What only some policies support (policy_capabilities.h), null in the others. It is part of the policy.
  virtual RowPolicy* rows() { return nullptr; }             ///< embedding tables
  virtual RoundPolicy* rounds() { return nullptr; }         ///< rounds, each an update of several shards
  virtual RoundNotices* roundNotices() { return nullptr; }  ///< notices to trainers that compute
  virtual AveragingPolicy* averaging() { return nullptr; }  ///< trainers average their gradients

  /// The current waits of trainers for others.
  virtual std::vector<Waiting> waiting() const { return {}; }
  /// Handles timeouts; called about every 20 ms. Resolves when that is done.
  virtual kj::Promise<void> tick(std::chrono::steady_clock::time_point) { return kj::READY_NOW; }
  /// Resolves when no update is in progress. Called while no gradient starts or is partially received.
  /// Gradients that wait for other trainers remain waiting.
  virtual kj::Promise<void> quiesce() { return kj::READY_NOW; }
  /// Answers the gradients that wait for other trainers without waiting for more, because another policy
  /// takes over. Called while no gradient starts or is partially received. Resolves when these gradients are
  /// part of the model.
  virtual kj::Promise<void> drain() { return kj::READY_NOW; }
  /// Another policy has taken over: ends all waits, and calls no longer wait.
  virtual void retire() {}
  /// Fails all current and future waits with `reason`: the daemon shuts down.
  virtual void endWaits(const Error&) {}
};

}  // namespace psd
