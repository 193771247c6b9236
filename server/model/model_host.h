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

/// ErrorCode::modelMismatch, naming the first difference, if a peer's model is not the served one.
Status checkSameModel(const ModelSpec& served, const ModelSpec& peers);

/// The served model and its policies: created from a checkpoint, the configuration or the first trainer's
/// model, saved while it is trained, and carried over to a new configuration.
///
/// Owned by the control loop's thread, on which every method is called.
class ModelHost final : private kj::TaskSet::ErrorHandler {
 public:
  /// `env`, `durability` and `counters` must outlive it.
  ModelHost(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
            Env& env, Durability& durability, DaemonMetrics& counters, std::shared_ptr<ByteBudget> snapshots);

  /// `moments` receives the state after each round of every policy that is made from now on. Call before
  /// there is a model.
  void setMoments(std::shared_ptr<RoundMoments> moments) { moments_ = std::move(moments); }
  /// Resumes from a checkpoint. Blocks; called before any trainer joins.
  Status resumeFrom(const Checkpoint& checkpoint);
  /// Creates a standby's copy from the primary's checkpoint, with the primary's shards, to which the
  /// primary's updates are then applied. On any thread; blocks.
  Result<std::shared_ptr<ServedModel>> copyFrom(Env& env, const Checkpoint& checkpoint,
                                                const DaemonConfig& config) const;
  /// Creates this daemon's partition of a model that moves here, from the checkpoints of all source daemons
  /// in the order of their partitions. ErrorCode::modelMismatch if their policies or optimizers differ from
  /// this daemon's. On any thread; blocks.
  Result<std::shared_ptr<ServedModel>> partitionFrom(Env& env, const std::vector<Checkpoint>& parts,
                                                     const DaemonConfig& config) const;
  /// Installs the model of partitionFrom(); resolves when it is saved, if durability is configured.
  kj::Promise<Status> installModel(std::shared_ptr<ServedModel> model);
  /// Drops the model.
  void drop();
  /// See ParameterHost::stopSaving().
  void stopSaving() { durability_.stop(); }
  /// Installs the model of copyFrom(), which is not ready() until takeOver().
  void follow(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config);
  /// Makes the copy the served model: starts saving it, unless it is saved already, and makes it ready().
  void takeOver();
  /// Loads or allocates the model, if the configuration names one. Blocks; called before any trainer joins.
  Status load();
  /// Starts saving the model, if it is initialized. A failure is logged and retried. Blocks; called before
  /// any trainer joins.
  void startSavingBlocking();

  /// Creates the model of the first trainer; for later ones, checks that their model and optimizer (JSON;
  /// empty: the daemon's) are the served ones. Resolves without having done either if the state changed
  /// meanwhile: the caller checks serves() and retries.
  kj::Promise<Status> provideModel(ModelSpec model, std::string optimizer);
  /// The configured groups with the optimizers that the model has once this trainer has joined, or why it may
  /// not: see provideModel().
  Result<std::vector<GroupConfig>> groupsFor(const std::string& optimizer) const;
  /// The optimizers of the served model, by group; there is one.
  std::vector<Optimizer> servedOptimizers() const;
  /// The configured groups, with the served model's optimizers where trainers send them.
  std::vector<GroupConfig> servedGroups() const;
  bool serves(const ModelSpec& model) const;
  /// By shard, the pushes of one trainer process that each range contained when this daemon started
  /// (pushesOf()); empty for a shard that contained none.
  std::vector<std::vector<AppliedPush>> savedPushesOf(const TrainerProcess& process) const;
  /// The ranks of trainers whose pushes were in the saved model from which this daemon started.
  std::set<Rank> savedRanks() const;
  /// Whether the checkpoint shows that a newer process of this rank has pushed.
  bool superseded(const TrainerProcess& process) const;
  /// The initializer has sent all values: starts saving the model. Resolves when pushes are durable, or
  /// cannot be made so for now, which is logged; the model is ready() from then on.
  kj::Promise<void> saveValues();
  /// Whether a trainer may replace the model's values and optimizer state: the run has not begun, and no
  /// gradient waits for others. ErrorCode::invalidArgument.
  Status mayRestore() const;
  /// Replaces them, and saves the result. Called while new gradients are held back and none is incomplete.
  kj::Promise<Status> restore(std::shared_ptr<const ModelState> state);
  /// restore() whatever mayRestore() says: gradients that wait for others are applied or dropped first.
  /// `pristine`: a run begins with the state.
  kj::Promise<Status> replace(std::shared_ptr<const ModelState> state, bool pristine = false);
  /// Drops an uninitialized model, unless the configuration names it, so that the next trainer can supply its
  /// own. Returns whether it has no model now.
  bool dropUninitialized();

  std::shared_ptr<ServedModel> model() const { return model_; }
  /// The model is initialized, and trainers may train it.
  bool ready() const { return model_ && ready_; }
  /// The source of checkpoints of an initialized model.
  static CheckpointSource savingSource(const std::shared_ptr<ServedModel>& model);

  /// Adds a trainer to the policies' members, or removes it; the policies may then complete the waits of
  /// others.
  void join(const TrainerRef& trainer);
  void leave(SessionId session);
  /// Runs the time-driven work of the policies. Returns whether any policy has such work.
  bool tick();
  /// Fails every wait of trainers for each other with `reason`.
  void endWaits(const Error& reason);

  /// Resolves when no update is being applied and the policies that are not kept have answered the trainers
  /// that waited. Called before adopt(), while new gradients are held back and none is incomplete.
  kj::Promise<void> settle(const std::vector<bool>& keepPolicies);
  /// Resolves when no policy is working. Called when gradients are refused, before the control loop blocks
  /// for the final save.
  kj::Promise<void> quiesce();
  /// Switches to a configuration that checkLiveChange() accepts; called after settle(). `keepPolicies`: the
  /// parameter groups whose policies stay, with their state.
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);

  /// The ten rows of each table with the most updates. ErrorCode::notReady while another call is in progress.
  kj::Promise<Result<HotRowsStatus>> hotRows();
  /// Ranks of the trainers that wait for others, ascending.
  std::vector<uint32_t> waiters() const;
  /// Fills in policy, optimizer, model, shards, waits, rounds and the memory of staged gradients.
  void fillStatus(DaemonStatus& status) const;

 private:
  std::vector<ShardStatus> shardsStatus() const;
  std::vector<TableStatus> tablesStatus() const;
  std::vector<RowShardStatus> rowShardsStatus() const;
  std::vector<WaitingStatus> waitingStatus() const;
  std::vector<RoundsStatus> roundsStatus() const;
  std::vector<LearningRateStatus> learningRates() const;
  /// The pushes in savedPushes_, of all shards and ranges.
  std::vector<AppliedPush> allSavedPushes() const;
  /// Creates the store, initializes it with `fill`, and then creates the policies, which read its versions.
  /// This and reordered() may run on any thread.
  Result<std::shared_ptr<ServedModel>> build(const DaemonConfig& config, ModelSpec model,
                                             const std::function<Status(ParameterStore&)>& fill = {}) const;
  Policies makePolicies(const DaemonConfig& config, ParameterStore& store) const;
  std::shared_ptr<UpdatePolicy> makePolicy(const DaemonConfig& config, ParameterStore& store, uint32_t group,
                                           bool started) const;
  /// Whether the model is initialized and no trainer has joined or trained it, so that the order of its
  /// tensors may still change.
  bool untrained() const;
  /// Rebuilds the served model with its tensors in the order of `trainers`, a trainer's model. Blocks.
  Result<std::shared_ptr<ServedModel>> reordered(const DaemonConfig& config, ServedModel& served,
                                                 ModelSpec trainers) const;
  kj::Promise<Status> serve(std::shared_ptr<ServedModel> model);
  kj::Promise<void> beginSaving();
  /// Applies limits.staged_bytes, here and on the devices.
  void limitStagedBytes();
  void taskFailed(kj::Exception&& exception) override;

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  Durability& durability_;
  DaemonMetrics& counters_;
  const std::shared_ptr<StagingPool> staging_;       // shared by all policies
  const std::shared_ptr<SnapshotBudget> snapshots_;  // shared by all policies
  std::shared_ptr<RoundMoments> moments_;            // null: none
  std::shared_ptr<ServedModel> model_;
  bool initialized_ = false;                       // initialized
  bool ready_ = false;                             // and saved, if durability is configured
  std::vector<PushedRanges> savedPushes_;          // by shard, the trainers' pushes in the model at the start
  std::map<SessionId, TrainerRef> trainers_;       // the policies' members
  kj::Maybe<kj::ForkedPromise<Status>> building_;  // while a model is being built
  bool findingHotRows_ = false;
  Background background_;
  kj::TaskSet tasks_;  // policies' work after a join, a departure or a tick
};

}  // namespace psd
