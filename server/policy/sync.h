#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/policy/policy_capabilities.h"
#include "server/policy/policy_config.h"
#include "server/policy/round_moments.h"
#include "server/policy/round_options.h"
#include "server/policy/round_updater.h"
#include "server/policy/round_waits.h"
#include "server/policy/shard_reads.h"
#include "server/policy/sync_rounds.h"

namespace psd {

/// Synchronous rounds (BSP; with backup trainers Chen, Pan, Monga, Bengio, Jozefowicz 2016): the gradients
/// that the trainers of a round computed from the same parameters form one update of all shards of the
/// parameter group, applied once; the pushes are answered after that. Gradients are gathered until the round
/// closes, and combined in rank order, so that the result depends on the gradients alone. A gradient for a
/// closed round is dropped (`late`) or counts in the open one (RoundOptions::lateRate). SyncRounds decides
/// when a round closes; departed trainers are not waited for. Reads are atomic per shard. Thread-safe.
class Sync final : public UpdatePolicy, public RowPolicy, public RoundPolicy, public RoundNotices {
 public:
  static PolicyPlan read(ConfigReader options);
  Sync(const PolicyScope& scope, RoundOptions options);

  std::string_view name() const override { return options_.name; }
  Properties properties() const override {
    return {.ticks = options_.rules.timeout || options_.rules.grace || resumes_ || moments_};
  }
  RowPolicy* rows() override { return this; }
  RoundPolicy* rounds() override { return this; }
  RoundNotices* roundNotices() override { return this; }
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
  RoundsReport report() const override;
  kj::Promise<void> tick(TimePoint now) override;
  bool started() const override;
  ShardLock* groupLock() override { return blocks().size() > 1 ? &applying_ : nullptr; }
  kj::Promise<void> quiesce() override;
  kj::Promise<void> drain() override;
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Result<PushAnswer>>>;

  /// One trainer's gradient for one round, while it arrives.
  struct Contribution : RoundPart {
    size_t arrived = 0, staged = 0;  ///< number of blocks with all slices; number of staged blocks
    std::optional<Error> failed;
    Fulfiller answer;  ///< set once all blocks have arrived
  };
  using Contributions = std::vector<std::shared_ptr<Contribution>>;
  struct Trainer {
    TrainerRef ref;
    std::map<Step, std::shared_ptr<Contribution>> building;
  };
  /// A round that ended, and its contributions to be applied or refused.
  struct Ended {
    RoundEnd end;
    Contributions contributions;  ///< by rank
    std::vector<RoundTally::Member> missing;
  };

  const std::vector<ParameterBlock*>& blocks() const { return updater_.blocks(); }
  size_t indexOf(const ParameterBlock& block) const;  // in blocks()

  /// The round that a gradient was computed for, according to this block's version; nullopt if it closed
  /// before this policy started. A part without rows belongs to any round. With mutex_ held.
  std::optional<uint64_t> roundOf(size_t index, const ShardPush& push) const;
  /// Sets push.dropped for a part that is late when its first slice arrives.
  Status begin(const ParameterBlock& block, ShardPush& push) const;
  Status gather(const Shard& shard, ShardPush& push, uint64_t offset, const Gradient& gradient);
  /// All slices of a block have arrived. Once all blocks have, sets push.pendingAnswer. Returns null if the
  /// part cannot count.
  std::shared_ptr<Contribution> arrived(size_t index, ShardPush& push);
  /// Stores one block of a contribution with `put`, and submits the contribution once all blocks are stored.
  /// Finishes the round that this closes.
  kj::Promise<void> staged(std::shared_ptr<Contribution> contribution,
                           const std::function<Status(Contribution&)>& put);
  // With mutex_ held: adds a complete contribution to its round, or returns its answer. Sets `ended` to the
  // round that the contribution closed.
  std::optional<Result<PushAnswer>> submit(const std::shared_ptr<Contribution>& contribution,
                                           std::optional<Ended>& ended);
  // With mutex_ held: whether the hyperparameters are those of the round's other trainers.
  Status checkAgrees(const Contribution& contribution) const;
  // With mutex_ held: removes the open round, which has ended, with its contributions.
  Ended take(RoundEnd end);
  // With mutex_ held: records statistics of a closed round.
  void note(const Ended& ended);
  // With mutex_ held.
  RoundState roundState() const { return {rounds_.number(), rounds_.closingUntil().has_value()}; }
  /// Applies a closed round and answers its contributors; refuses the contributions of a failed one. Notifies
  /// roundDue() callers.
  kj::Promise<void> finish(std::optional<Ended> ended);
  /// Applies a round's update, with applying_ held. Returns the LSN of its last update; 0 without a log.
  kj::Promise<Result<uint64_t>> applyRound(const std::shared_ptr<const Ended>& round);
  /// Answers the contributors of a round: applied, with the LSN, or the error.
  void answer(const Ended& ended, const Result<uint64_t>& logged) const;
  /// What all daemons call the state after an applied round; nullopt: its trainers do not say.
  static std::optional<RoundMoment> momentOf(const Ended& ended);

  const RoundOptions options_;
  const std::shared_ptr<StagingPool> staging_;
  const std::shared_ptr<SnapshotBudget> snapshots_;
  RoundUpdater updater_;                         ///< used with applying_ held
  std::optional<RoundMetrics> metrics_;          ///< nullopt: not recorded
  const std::shared_ptr<RoundMoments> moments_;  ///< null: the state after rounds is not copied
  const uint32_t group_;
  const bool resumes_;        ///< the run resumes from a previous daemon
  const bool followsPolicy_;  ///< gradients computed under the previous policy count for round 0
  ShardLock applying_;        ///< rounds are applied one at a time
  RoundWaits waits_;          ///< parked roundDue() calls

  mutable std::mutex mutex_;  // guards the members below; held briefly, never while waiting
  /// By block: its version when round 0 opened, minus the number of rounds that it failed to apply.
  std::vector<int64_t> first_;
  SyncRounds rounds_;
  std::map<SessionId, Trainer> trainers_;
  std::map<SessionId, std::shared_ptr<Contribution>> open_;  // contributions to the open round
  RoundTally tally_;
  std::optional<Error> ending_;
};

}  // namespace psd
