#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"
#include "server/checkpoint/durability.h"
#include "server/config/daemon_config.h"
#include "server/loop/background.h"
#include "server/membership/sample_plan.h"
#include "server/metrics/counters.h"
#include "server/policy/served_model.h"
#include "server/status/daemon_status.h"
#include "server/status/hot_rows.h"
#include "server/store/pushed_ranges.h"

namespace psd {

/// Whether a peer's model is the one that is served here. ErrorCode::modelMismatch tells the first
/// difference.
Status checkSameModel(const ModelSpec& served, const ModelSpec& peers);

/// The model that is served and its policies: made of a checkpoint, of what the configuration names or of
/// what the first trainer has, saved while it is trained, and taken over to another configuration.
///
/// Owned by the control loop's thread, on which every method is called.
class ModelHost final : private kj::TaskSet::ErrorHandler {
 public:
  /// `env`, `durability` and `counters` outlive it.
  ModelHost(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
            Env& env, Durability& durability, DaemonMetrics& counters, std::shared_ptr<ByteBudget> snapshots);

  /// Goes on from a checkpoint. Blocks; before any trainer.
  Status goOnFrom(const Checkpoint& checkpoint);
  /// The model of a checkpoint as the primary cut it, to be kept up with the primary's updates. From any
  /// thread; blocks.
  Result<std::shared_ptr<ServedModel>> copyFrom(Env& env, const Checkpoint& checkpoint,
                                                const DaemonConfig& config) const;
  /// This daemon's partition of a model that other daemons had, from the checkpoints of all of these, in the
  /// order of their partitions. ErrorCode::modelMismatch where they go by other rules. From any thread;
  /// blocks.
  Result<std::shared_ptr<ServedModel>> partitionFrom(Env& env, const std::vector<Checkpoint>& parts,
                                                     const DaemonConfig& config) const;
  /// The model of partitionFrom() is the model from now on; resolves when it is saved, where it is to be.
  kj::Promise<Status> takeIn(std::shared_ptr<ServedModel> model);
  /// Has no model any more.
  void drop();
  /// See ParameterHost::stopSaving().
  void stopSaving() { durability_.stop(); }
  /// Shows the model of copyFrom(), which nobody may use until takeOver().
  void follow(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config);
  /// The copy is the model from now on: it is saved, if it is not yet, and trainers may go.
  void takeOver();
  /// Loads or allocates the model, if the configuration names one. Blocks; before any trainer.
  Status load();
  /// Begins to save the model, if it has its values. A failure is logged and tried again. Blocks; before any
  /// trainer.
  void beginSavingAtOnce();

  /// Makes the model of a trainer that is the first one; else checks that its model is the one that is
  /// served. Ends without either where something changed meanwhile: serves() tells, and it may be asked
  /// again.
  kj::Promise<Status> provide(ModelSpec model);
  bool serves(const ModelSpec& model) const;
  /// By shard, which pushes of one process of a trainer each range held when this daemon started
  /// (pushesOf()); empty for a shard that held none.
  std::vector<std::vector<AppliedPush>> savedOf(const TrainerProcess& process) const;
  /// The ranks whose pushes were in the model when this daemon started from what another had saved.
  std::set<Rank> ranksBefore() const;
  /// True if the checkpoint shows that a newer process of this rank has pushed.
  bool superseded(const TrainerProcess& process) const;
  /// The first trainer has brought all values: begins to save the model. Resolves when pushes are safe, or
  /// cannot be for now, which the log says; the model is ready() from then on.
  kj::Promise<void> keepValues();
  /// Forgets a model to which nobody brought values, unless the configuration names it: the next trainer
  /// comes with its own. Whether it did.
  bool dropUnclaimed();

  std::shared_ptr<ServedModel> model() const { return model_; }
  /// The model has its values, and trainers may go.
  bool ready() const { return model_ && ready_; }
  /// What there is to save of a model that has its values.
  static CheckpointSource savingSource(const std::shared_ptr<ServedModel>& model);

  /// The policies count a trainer as in, and as gone; they may work on what that means for others.
  void join(const TrainerRef& trainer);
  void leave(SessionId session);
  /// Lets the policies do what is due by the clock. Whether any of them goes by it.
  bool tick();
  /// Ends every wait of trainers for each other: nobody can count on the others any more.
  void endWaits(const Error& reason);

  /// Resolves when nothing is being applied any more; policies that are to go have then answered the trainers
  /// that waited. Called before adopt(), while no gradient begins or is half there.
  kj::Promise<void> settle(const std::vector<bool>& keepPolicies);
  /// Resolves when no policy is at work any more. Called when no gradient is taken any more, before the loop
  /// blocks for the last work.
  kj::Promise<void> quiesce();
  /// Goes over to a configuration that checkLiveChange() lets pass; after settle(). `keepPolicies`: the
  /// groups whose policies stay, with all that they know.
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);

  /// The ten rows of each table with the most updates. ErrorCode::notReady while it is being found out for
  /// another caller.
  kj::Promise<Result<HotRowsStatus>> hotRows();
  /// Ranks of the trainers that wait for others, ascending.
  std::vector<uint32_t> waiters() const;
  /// Policy, optimizer, model and shards; who waits for whom; and what gathered gradients take.
  void fillStatus(DaemonStatus& status) const;

 private:
  std::vector<ShardStatus> shardsStatus() const;
  std::vector<TableStatus> tablesStatus() const;
  std::vector<RowShardStatus> rowShardsStatus() const;
  std::vector<WaitingStatus> waitingStatus() const;
  std::vector<RoundsStatus> roundsStatus() const;
  /// The pushes in saved_, of all shards and ranges.
  std::vector<AppliedPush> allSaved() const;
  /// A store for the model, given its values by `fill`, and only then its policies, which count from there.
  /// This and reordered() from any thread.
  Result<std::shared_ptr<ServedModel>> build(const DaemonConfig& config, ModelSpec model,
                                             const std::function<Status(ParameterStore&)>& fill = {}) const;
  Policies makePolicies(const DaemonConfig& config, ParameterStore& store) const;
  std::shared_ptr<UpdatePolicy> makePolicy(const DaemonConfig& config, ParameterStore& store, uint32_t group,
                                           bool started) const;
  /// Whether the model has its values and nobody has trained it, so that its tensors' order is nobody's yet.
  bool untrained() const;
  /// Makes the served model anew with its tensors in the order of `trainers`, a trainer's model. Blocks.
  Result<std::shared_ptr<ServedModel>> reordered(const DaemonConfig& config, ServedModel& served,
                                                 ModelSpec trainers) const;
  kj::Promise<Status> serve(std::shared_ptr<ServedModel> model);
  kj::Promise<void> beginSaving();
  /// Bounds gathered gradients as the configuration says, here and on the devices.
  void limitStaged();
  void taskFailed(kj::Exception&& exception) override;

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  Durability& durability_;
  DaemonMetrics& counters_;
  const std::shared_ptr<StagingPool> staging_;     // shared by all policies
  const std::shared_ptr<SnapshotRoom> snapshots_;  // shared by all policies
  std::shared_ptr<ServedModel> model_;
  bool hasValues_ = false;                    // they are complete
  bool ready_ = false;                        // and saved, where they are to be
  std::vector<PushedRanges> saved_;           // by shard, the trainers' pushes that were there at the start
  std::map<SessionId, TrainerRef> trainers_;  // trainers that the policies count as in
  kj::Maybe<kj::ForkedPromise<Status>> building_;  // while a model is being made
  bool findsHotRows_ = false;
  Background background_;
  kj::TaskSet tasks_;  // what policies do after a departure or by the clock
};

}  // namespace psd
