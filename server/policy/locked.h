#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <kj/function.h>

#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/pulled_weights.h"
#include "server/policy/push_turns.h"
#include "server/policy/row_updates.h"
#include "server/policy/shard_reads.h"
#include "server/policy/shard_updates.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Updates under the shard's lock: each shard moves from one version to the next whole, no update is
/// lost, and a pull sees every shard at one version. A gradient that comes in several slices is gathered
/// first; a pull in several slices reads one snapshot, shared by all pulls of that version. Waiting for the
/// lock parks a promise. Deterministic for a given order of pushes.
///
/// With clip.norm a gradient is applied when all shards of the group have it. With delay compensation the
/// snapshots that trainers compute from are kept. Thread-safe.
class Locked final : public UpdatePolicy {
 public:
  static PolicyPlan read(ObjectReader& options);
  Locked(const PolicyScope& scope, const Modifiers& modifiers);

  std::string_view name() const override { return "locked"; }
  bool completesPushes() const override { return true; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PushAnswer>> pushDifference(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                 Gradient slice) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;

 private:
  /// One shard's gradient, all of it.
  struct Whole {
    WholeShard part;
    std::shared_ptr<const ShardSnapshot> pulled;  ///< the weights that it was computed from, if needed
  };
  /// One shard's part of a step, which waits for the parts of the other shards.
  struct Part {
    double square;  ///< of the part's norm
    /// Applies the part, times a factor; on the trainer's loop, on which all its parts come.
    kj::Function<kj::Promise<Result<PushAnswer>>(double scale)> apply;
    kj::Own<kj::CrossThreadPromiseFulfiller<Result<PushAnswer>>> answer;
  };
  using Parts = std::vector<Part>;

  Whole wholeOf(const Shard& shard, WholeShard part);
  /// Applies a gradient under the shard's lock, times `scale`.
  kj::Promise<Result<PushAnswer>> apply(Shard& shard, Lane& lane, Whole whole, double scale);
  /// Applies a gradient, with `room` for the update in the log, once the shard's lock is had.
  kj::Promise<Result<PushAnswer>> applyInTurn(Shard& shard, Lane& lane, Whole whole, double scale,
                                              ByteBudget::Lease room);
  /// Applies a gradient while the caller holds the shard's lock, with `room` for the update in the log.
  kj::Promise<Result<PushAnswer>> applyUnderLock(Shard& shard, Lane& lane, Whole whole, double scale,
                                                 ByteBudget::Lease room);
  /// Gathers a slice of rows, and applies the part with its last one.
  kj::Promise<Result<PushAnswer>> gatherRowsOf(RowShard& shard, ShardPush& push, uint64_t first,
                                               const RowGradient& slice);
  /// Applies a part of rows, times `scale`, under the shard's lock.
  kj::Promise<Result<PushAnswer>> applyRows(RowShard& shard, WholeRows whole, double scale);
  Result<PushAnswer> applyRowsUnderLock(RowShard& shard, WholeRows whole, double scale,
                                        ByteBudget::Lease room);
  /// What becomes of an update by this source, for a caller that holds the block's lock: its rate, or why
  /// nothing of it is applied.
  struct Admitted {
    UpdateScalars scalars;
    std::vector<PushedRange> lacking;
    std::optional<PushAnswer> refused;
  };
  Admitted admit(ParameterBlock& block, UpdateSource& source) const;
  /// Applies all parts of a step, clipped by their norm, once this one is the last; its answer is in
  /// push.pendingAnswer. `square`: of this part's norm.
  kj::Promise<Result<PushAnswer>> applyTogether(
      const ParameterBlock& block, ShardPush& push, double square,
      kj::Function<kj::Promise<Result<PushAnswer>>(double scale)> apply);
  /// Adds a part. Gives all parts of the step if this one completes it, else none. `known`: parts that do not
  /// come. Gives nothing for a trainer that is not in: its part would wait for parts that went with the
  /// trainer.
  std::optional<Parts> add(SessionId session, Step step, Part part, size_t known);

  const Modifiers modifiers_;
  const std::shared_ptr<StagingPool> staging_;
  const size_t blocks_;  // of the group
  PulledWeights pulled_;
  PushTurns turns_;  // where updates are recorded
  const std::shared_ptr<SnapshotRoom> snapshots_;

  std::mutex mutex_;                                  // guards what follows, for few instructions
  std::map<SessionId, std::map<Step, Parts>> steps_;  // of the trainers that are in
};

}  // namespace psd
