#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <kj/function.h>

#include "server/policy/modifiers.h"
#include "server/policy/policy_capabilities.h"
#include "server/policy/policy_config.h"
#include "server/policy/pulled_weights.h"
#include "server/policy/push_turns.h"
#include "server/policy/row_updates.h"
#include "server/policy/shard_reads.h"
#include "server/policy/shard_updates.h"

namespace psd {

/// Updates under the shard's lock: each shard changes version atomically, no update is lost, and a pull sees
/// each shard at one version. A gradient in several slices is gathered first; a pull in several slices reads
/// one snapshot, shared by all pulls of that version. Waiting for the lock parks a promise. Deterministic for
/// a given order of pushes.
///
/// With clip.norm, a gradient is applied once all shards of the parameter group have their part. With delay
/// compensation, the snapshots that trainers compute from are retained. Thread-safe.
class Locked final : public UpdatePolicy, public RowPolicy {
 public:
  static PolicyPlan read(ConfigReader options);
  Locked(const PolicyScope& scope, const Modifiers& modifiers);

  std::string_view name() const override { return "locked"; }
  Properties properties() const override { return {.completesPushes = true, .takesDifferences = true}; }
  RowPolicy* rows() override { return this; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;

 private:
  /// One shard's complete gradient.
  struct Whole {
    WholeShard part;
    std::shared_ptr<const ShardSnapshot> pulled;  ///< the weights it was computed from, if needed
  };
  /// One shard's part of a step, waiting for the parts of the other shards.
  struct Part {
    double square;  ///< squared norm of the part
    /// Applies the part times `scale`; on the event loop of the trainer's pushes.
    kj::Function<kj::Promise<Result<PushAnswer>>(double scale)> apply;
    kj::Own<kj::CrossThreadPromiseFulfiller<Result<PushAnswer>>> answer;
  };
  using Parts = std::vector<Part>;

  Whole gatheredShard(const Shard& shard, WholeShard part);
  /// Applies a gradient under the shard's lock, times `scale`.
  kj::Promise<Result<PushAnswer>> apply(Shard& shard, Lane& lane, Whole whole, double scale);
  /// Acquires the shard's lock, then applies a gradient. `space`: log space reserved for the update.
  kj::Promise<Result<PushAnswer>> applyInTurn(Shard& shard, Lane& lane, Whole whole, double scale,
                                              ByteBudget::Lease space);
  /// Applies a gradient; the caller holds the shard's lock. `space`: log space reserved for the update.
  kj::Promise<Result<PushAnswer>> applyUnderLock(Shard& shard, Lane& lane, Whole whole, double scale,
                                                 ByteBudget::Lease space);
  /// Gathers a slice of rows, and applies the part when it is complete.
  kj::Promise<Result<PushAnswer>> gatherRowsOf(RowShard& shard, ShardPush& push, uint64_t first,
                                               const RowGradient& slice);
  /// Applies a part of rows, times `scale`, under the shard's lock.
  kj::Promise<Result<PushAnswer>> applyRows(RowShard& shard, WholeRows whole, double scale);
  Result<PushAnswer> applyRowsUnderLock(RowShard& shard, WholeRows whole, double scale,
                                        ByteBudget::Lease space);
  /// Decision on an update by a source, made with the block's lock held: its scalars and the ranges to apply
  /// it to, or the answer if it is refused.
  struct Admitted {
    UpdateScalars scalars;
    std::vector<PushedRange> lacking;
    std::optional<PushAnswer> refused;
  };
  Admitted admit(ParameterBlock& block, UpdateSource& source) const;
  /// Adds a part and, if it is the last of its step, applies all parts, clipped by their common norm. The
  /// part's answer is in push.pendingAnswer. `square`: squared norm of this part.
  kj::Promise<Result<PushAnswer>> applyTogether(
      const ParameterBlock& block, ShardPush& push, double square,
      kj::Function<kj::Promise<Result<PushAnswer>>(double scale)> apply);
  /// Adds a part. Returns all parts of the step if this one completes it, else an empty list. `known`: number
  /// of parts that will not arrive. Returns nullopt if the trainer has departed: the part would wait for
  /// parts that were dropped with the trainer.
  std::optional<Parts> add(SessionId session, Step step, Part part, size_t known);

  const Modifiers modifiers_;
  const std::shared_ptr<StagingPool> staging_;
  const size_t blocks_;  // of the parameter group
  PulledWeights pulled_;
  PushTurns turns_;  // used if updates are recorded
  const std::shared_ptr<SnapshotBudget> snapshots_;

  std::mutex mutex_;                                  // guards the members below; held briefly
  std::map<SessionId, std::map<Step, Parts>> steps_;  // incomplete steps of joined trainers
};

}  // namespace psd
