#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/policy/aggregator/aggregator.h"
#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/shard_reads.h"
#include "server/policy/sync_rounds.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Synchronous rounds (BSP; with backup trainers Chen, Pan, Monga, Bengio, Jozefowicz 2016): the gradients
/// that the trainers of a round computed from the same parameters become one update of all shards of the
/// group, applied once; only then are they answered. Gradients are gathered until the round closes, and
/// combined in the order of the ranks, so that the result depends on the gradients alone. A gradient for a
/// round that is closed is answered `late` and dropped. SyncRounds decides when a round closes; no trainer
/// that left or is lost is waited for. Reads see each shard whole. Thread-safe.
class Sync final : public UpdatePolicy {
 public:
  struct Options {
    std::string_view name = "sync";  ///< what it goes by in the configuration
    std::shared_ptr<const Aggregator> aggregator;
    RoundRules rules;
    Clip clip;  ///< of the gradient that a round makes
  };

  static PolicyPlan read(ObjectReader& options);
  /// The options of rounds alone.
  static Options readRounds(ObjectReader& options);
  static RoundPlan planOf(const Options& options);
  Sync(const PolicyScope& scope, Options options);

  std::string_view name() const override { return options_.name; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  std::vector<Waiting> waiting() const override;
  bool ticks() const override { return options_.rules.timeout.has_value(); }
  kj::Promise<void> tick(TimePoint now) override;
  bool started() const override;
  ShardLock* groupLock() override { return shards_.size() > 1 ? &applying_ : nullptr; }
  kj::Promise<void> quiesce() override;
  kj::Promise<void> drain() override;
  void endWaits(const Error& reason) override;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Result<PushAnswer>>>;

  /// One trainer's gradient for one round.
  struct Contribution {
    TrainerRef trainer;
    uint32_t samples = 0;
    Step step;
    std::optional<uint64_t> round;       ///< whose parameters it was computed from; nothing: of one before
    std::vector<StagedGradient> shards;  ///< in the order of shards_; empty: not there yet, or not needed
    size_t arrived = 0, staged = 0;      ///< shards of which every slice is here; shards that are staged
    std::optional<Error> failed;
    Fulfiller answer;  ///< once all have arrived
  };
  using Contributions = std::vector<std::shared_ptr<Contribution>>;
  struct Trainer {
    TrainerRef ref;
    std::map<Step, std::shared_ptr<Contribution>> building;
  };
  /// A round that ended, and what its contributors are to be told or to become.
  struct Ended {
    RoundEnd end;
    Contributions contributions;  ///< by rank
    std::vector<Rank> missing;
  };

  size_t indexOf(const Shard& shard) const;  // in shards_

  /// The round whose parameters a gradient was computed from, as far as this shard's version tells; nothing
  /// where that was closed before this policy began. With mutex_ held.
  std::optional<uint64_t> roundOf(size_t index, Version basis) const;
  Status gather(const Shard& shard, ShardPush& push, uint64_t offset, const Gradient& gradient);
  /// The shard's slices are all here. Leaves the promise of the answer in `push` when they are of all shards.
  std::shared_ptr<Contribution> arrived(size_t index, ShardPush& push);
  /// One shard of a contribution is staged, or is not needed. Closes the round if that was all it waited for.
  kj::Promise<void> staged(size_t index, std::shared_ptr<Contribution> contribution,
                           Result<StagedGradient> gradient);
  // With mutex_ held: a complete contribution joins its round, or its answer is given at once. `ended` gets
  // the round that the contribution closed.
  std::optional<Result<PushAnswer>> submit(const std::shared_ptr<Contribution>& contribution,
                                           std::optional<Ended>& ended);
  // With mutex_ held: takes the open round, which has ended, with its contributions.
  Ended take(RoundEnd end);
  /// Applies a round that closed, and answers its contributors.
  kj::Promise<void> finish(std::optional<Ended> ended);
  /// Applies a round to all shards. Gives the number of its last update in the log; 0 without a log.
  kj::Promise<Result<uint64_t>> applyRound(std::shared_ptr<const Ended> round);
  /// Applies a round to the shards from `next` on, one after the other.
  kj::Promise<Result<uint64_t>> applyShards(std::shared_ptr<const Ended> round, Combination combination,
                                            size_t next);
  /// Applies a round to one shard, with the shard's lock held.
  kj::Promise<Status> applyShard(std::shared_ptr<const Ended> round, const Combination& combination,
                                 size_t index, ByteBudget::Lease room);
  /// Makes the update `scalars` of shard `index`, whose lock is held.
  kj::Promise<Status> update(size_t index, std::shared_ptr<const Ended> round, const Combination& combination,
                             const UpdateScalars& scalars);
  /// Applies a round to one shard and logs it: from the gradient that the log gets, so that replaying it
  /// gives the same bits.
  kj::Promise<Status> updateLogged(size_t index, std::shared_ptr<const Ended> round,
                                   const Combination& combination, const UpdateScalars& scalars,
                                   ByteBudget::Lease room);
  kj::Promise<Result<SquaredDistances>> addDistances(std::shared_ptr<const Ended> round, SquaredDistances sum,
                                                     size_t next);
  /// ‖g‖² of what the round combines to.
  kj::Promise<Result<double>> addSquares(std::shared_ptr<const Ended> round, Combination combination,
                                         double sum, size_t next);
  /// Counts an update that a round made of a shard, and notes whose it was.
  void endUpdate(size_t index, const Ended& round, AppliedUpdate update, ByteBudget::Lease room);
  /// Tells the contributors of a round that it is applied, with its place in the log; else why not.
  void answer(const Ended& ended, const Result<uint64_t>& logged) const;
  using Gradients = std::shared_ptr<const std::vector<StagedGradient>>;  // kept until the storage is done
  static Gradients gradientsOf(const Ended& round, size_t shard);
  Error failureOf(const Ended& ended) const;

  const Options options_;
  const std::shared_ptr<StagingPool> staging_;
  const std::shared_ptr<SnapshotRoom> snapshots_;
  const std::vector<Shard*> shards_;
  const Lanes lanes_;              ///< of rounds that are applied; with applying_ held
  Histogram* const roundSeconds_;  ///< null: nobody asks
  const bool followsOther_;  ///< what trainers computed under the policy before counts for the first round
  ShardLock applying_;       ///< rounds are applied one after the other

  mutable std::mutex mutex_;  // guards what follows, for few instructions; never held while waiting
  /// For each shard: its version when round 0 opened, less the rounds that it failed to apply.
  std::vector<int64_t> first_;
  SyncRounds rounds_;
  std::map<SessionId, Trainer> trainers_;
  std::map<SessionId, std::shared_ptr<Contribution>> open_;  // contributions to the open round
  std::optional<Error> ending_;
};

}  // namespace psd
