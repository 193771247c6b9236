#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/policy/policy_config.h"
#include "server/policy/round_options.h"
#include "server/policy/round_updater.h"
#include "server/policy/round_waits.h"
#include "server/policy/shard_reads.h"
#include "server/policy/sync_rounds.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Synchronous rounds (BSP; with backup trainers Chen, Pan, Monga, Bengio, Jozefowicz 2016): the gradients
/// that the trainers of a round computed from the same parameters become one update of all shards of the
/// group, applied once; only then are they answered. Gradients are gathered until the round closes, and
/// combined in the order of the ranks, so that the result depends on the gradients alone. A gradient for a
/// round that is closed is dropped (`late`), or counts in the open one (RoundOptions::lateRate). SyncRounds
/// decides when a round closes; who left or is lost is not waited for. Reads see shards whole. Thread-safe.
class Sync final : public UpdatePolicy {
 public:
  static PolicyPlan read(ObjectReader& options);
  Sync(const PolicyScope& scope, RoundOptions options);

  std::string_view name() const override { return options_.name; }
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
  kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version) override;
  std::vector<Waiting> waiting() const override;
  std::optional<RoundsReport> rounds() const override;
  bool ticks() const override { return options_.rules.timeout || options_.rules.grace || goesOn_; }
  kj::Promise<void> tick(TimePoint now) override;
  bool started() const override;
  ShardLock* groupLock() override { return blocks().size() > 1 ? &applying_ : nullptr; }
  kj::Promise<void> quiesce() override;
  kj::Promise<void> drain() override;
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Result<PushAnswer>>>;

  /// One trainer's gradient for one round, on its way in.
  struct Contribution : RoundPart {
    size_t arrived = 0, staged = 0;  ///< blocks of which every slice is here; blocks that are staged
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
    std::vector<RoundTally::Member> missing;
  };

  const std::vector<ParameterBlock*>& blocks() const { return updater_.blocks(); }
  size_t indexOf(const ParameterBlock& block) const;  // in blocks()

  /// The round whose parameters a gradient was computed from, as far as this block's version tells; nothing
  /// where that was closed before this policy began. A part without rows is of any round. With mutex_ held.
  std::optional<uint64_t> roundOf(size_t index, const ShardPush& push) const;
  /// Notes in push.dropped whether a part that begins is late.
  Status begin(const ParameterBlock& block, ShardPush& push) const;
  Status gather(const Shard& shard, ShardPush& push, uint64_t offset, const Gradient& gradient);
  /// The block's slices are all here. Leaves the promise of the answer in `push` when they are of all blocks.
  std::shared_ptr<Contribution> arrived(size_t index, ShardPush& push);
  /// One block of a contribution is staged, or is not needed, and `put` puts it there. Closes the round if
  /// that was all it waited for.
  kj::Promise<void> staged(std::shared_ptr<Contribution> contribution,
                           const std::function<Status(Contribution&)>& put);
  // With mutex_ held: a complete contribution joins its round, or its answer is given at once. `ended` gets
  // the round that the contribution closed.
  std::optional<Result<PushAnswer>> submit(const std::shared_ptr<Contribution>& contribution,
                                           std::optional<Ended>& ended);
  // With mutex_ held: takes the open round, which has ended, with its contributions.
  Ended take(RoundEnd end);
  // With mutex_ held: keeps what there is to tell of a round that closed.
  void note(const Ended& ended);
  // With mutex_ held.
  RoundStanding standing() const { return {rounds_.number(), rounds_.closingUntil().has_value()}; }
  /// Applies a round that closed, and answers its contributors.
  kj::Promise<void> finish(std::optional<Ended> ended);
  /// Makes a round's update, with applying_ held. Gives the number of its last update in the log; 0 without a
  /// log.
  kj::Promise<Result<uint64_t>> applyRound(const std::shared_ptr<const Ended>& round);
  /// Tells the contributors of a round that it is applied, with its place in the log; else why not.
  void answer(const Ended& ended, const Result<uint64_t>& logged) const;

  const RoundOptions options_;
  const std::shared_ptr<StagingPool> staging_;
  const std::shared_ptr<SnapshotRoom> snapshots_;
  RoundUpdater updater_;                 ///< with applying_ held
  std::optional<RoundMetrics> metrics_;  ///< nothing: nobody asks
  const bool goesOn_;                    ///< an earlier daemon began the run
  const bool followsOther_;  ///< what trainers computed under the policy before counts for the first round
  ShardLock applying_;       ///< rounds are applied one after the other
  RoundWaits waits_;         ///< who is told before a round closes

  mutable std::mutex mutex_;  // guards what follows, for few instructions; never held while waiting
  /// For each block: its version when round 0 opened, less the rounds that it failed to apply.
  std::vector<int64_t> first_;
  SyncRounds rounds_;
  std::map<SessionId, Trainer> trainers_;
  std::map<SessionId, std::shared_ptr<Contribution>> open_;  // contributions to the open round
  RoundTally tally_;
  std::optional<Error> ending_;
};

}  // namespace psd
