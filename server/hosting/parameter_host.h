#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/checkpoint/durability.h"
#include "server/checkpoint/locked_folder.h"
#include "server/coordination/coordinator.h"
#include "server/coordination/hosting.h"
#include "server/hosting/checkpoint_requests.h"
#include "server/limits/memory_budgets.h"
#include "server/loop/background.h"
#include "server/model/model_host.h"
#include "server/publish/parts_intake.h"
#include "server/publish/publisher.h"
#include "server/push/push_server.h"
#include "server/replica/standby_disk.h"
#include "server/replica/standby_files.h"

namespace psd {

/// Holds the parameters: the served model, its durability, and the pushes of each trainer process. A
/// Coordinator reports which trainers are joined.
///
/// Owned by the control loop's thread, on which every method is called.
class ParameterHost final : public Hosting {
 public:
  /// What a session pulls from and pushes to. Null if its process is gone.
  struct Place {
    std::shared_ptr<ServedModel> model;
    std::shared_ptr<PushServer> pushes;
  };

  /// `env`, `metrics`, `budgets` and `outcomes` outlive it. `log`: null without replication.
  ParameterHost(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
                Env& env, DaemonMetrics& metrics, const MemoryBudgets& budgets, StepOutcomes& outcomes,
                std::shared_ptr<Replicator> log = nullptr);

  /// Opens and locks the folder. Call before anything except checkConfig().
  Status open();
  /// Sets a function that is called for each complete checkpoint before it is reported; if it fails, so does
  /// the checkpoint. Call after open(), before prepare(); `call` runs on any thread.
  void beforeCheckpointAnnounced(std::function<Status()> call) {
    durability_->beforeCheckpointAnnounced(std::move(call));
  }
  /// Sets how restore() runs `work` while new gradients are held back and none is incomplete.
  using WhileQuiesced = std::function<kj::Promise<Status>(std::function<kj::Promise<Status>()> work)>;
  void quiesceWith(WhileQuiesced whileQuiesced) { whileQuiesced_ = std::move(whileQuiesced); }
  /// Replaces the model's values and optimizer state by a trainer's. Resolves when that is durable and no
  /// standby can take over with the previous state. `departed`: as of now.
  kj::Promise<Status> restore(std::shared_ptr<const ModelState> state, Departed departed);
  /// Rebuilds the model, with the state of its optimizer, as it was at the published version `number`, lets
  /// it replace the current one, and publishes that as a new version, which it resolves with. Gradients of
  /// earlier versions are stale from then on. `departed`: as of the call; `replaced` is called once the model
  /// is replaced, also if publishing fails then. Errors: as of Admin.rollBack in the schema.
  kj::Promise<Result<VersionInfo>> rollBack(uint64_t number, std::function<Departed()> departed,
                                            std::function<void()> replaced);
  /// Resumes from a checkpoint, or loads or allocates the configured model. Blocks; call after open().
  Result<PriorRun> prepare();
  /// Writes a file and then a checkpoint of the current model to `to`; resolves with the checkpoint's path.
  struct FileBeside {
    std::string name, text;
  };
  kj::Promise<Result<std::string>> copyTo(std::shared_ptr<Env> to, FileBeside beside);
  /// Creates the model from a primary's checkpoint and configuration. On any thread; blocks.
  Result<std::shared_ptr<ServedModel>> makeCopy(Env& files, const Checkpoint& checkpoint,
                                                const DaemonConfig& config) const {
    return models_->copyFrom(files, checkpoint, config);
  }
  /// Saves the copy on this daemon's disk while it follows. Threads as makeCopy(); see StandbyDisk.
  std::unique_ptr<StandbyDisk> makeDisk(const std::shared_ptr<ServedModel>& copy,
                                        std::function<Status()> mark) const {
    return std::make_unique<StandbyDisk>(*durability_, ModelHost::savingSource(copy), std::move(mark));
  }
  /// Shows the copy, which uses `config`, in the status; it must not be used before serveCopy().
  void showCopy(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config);
  /// Makes the copy the served model, with its primary's samples and departed trainers.
  PriorRun serveCopy(SamplePlan samples, std::optional<Departed> departed);
  /// Writes a checkpoint of the current model, reduced to the files that are `wanted`, to `to`; resolves with
  /// its path.
  kj::Promise<Result<std::string>> giveTo(std::shared_ptr<Env> to,
                                          std::function<bool(const std::string&)> wanted);
  /// Builds this daemon's partition of a model from the checkpoints that other daemons sent, at `paths`, in
  /// the order of their partitions. It is not served before installModel().
  struct Arrived {
    std::shared_ptr<ServedModel> model;
    SamplePlan samples;
  };
  kj::Promise<Result<Arrived>> makePartition(std::shared_ptr<Env> files, std::vector<std::string> paths);
  /// Makes `arrived` the served model. With durability, resolves once it and the departed ranks are on disk.
  kj::Promise<Status> installModel(Arrived arrived, Departed departed);
  /// Removes the model.
  void drop();
  /// Stops saving a dropped model. Blocks; on any thread.
  void stopSaving() { models_->stopSaving(); }
  /// Starts to save the model, if it is initialized. Blocks; call once, before any trainer joins.
  void beginSaving();
  /// Checks whether the devices support the policies of `config` with that number of trainers (0: unknown
  /// yet) and these push codecs.
  Status checkConfig(const DaemonConfig& config, uint32_t trainers,
                     std::span<const std::pair<Rank, std::string>> pushCodecs) const;
  /// Whether a trainer's pushes may use this codec, with the served model's optimizer or, without a model,
  /// with the trainer's (JSON; empty: the configuration's).
  Status checkCodec(const std::string& spec, const std::string& optimizer) const;
  /// Sets the groups' optimizers to those of the served model, if there is one and trainers send them.
  void adoptServedOptimizers(std::vector<GroupConfig>& groups) const;
  /// Fails if `next` configures an optimizer while a joined trainer's is used, whose pushes carry
  /// hyperparameters.
  Status checkOptimizer(const DaemonConfig& next) const;
  /// The optimizer of a joined process is used.
  void noteOptimizer(ProcessId id) { processes_.at(id).sendsOptimizer = true; }
  /// Applies another configuration; see ModelHost::adopt().
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);

  /// Where a trainer process pulls and pushes. `loop`: the caller's; it processes the pushes, unless another
  /// loop already does.
  Place placeOf(ProcessId id, const std::shared_ptr<EventLoop>& loop);
  /// The model for a reader; an empty `model` matches any.
  Result<std::shared_ptr<ServedModel>> observe(const ModelSpec& model) const;

  /// The current configuration.
  const DaemonConfig& config() const { return *config_; }
  /// Valid after open().
  ModelHost& models() { return *models_; }
  const ModelHost& models() const { return *models_; }
  /// Takes a checkpoint that starts after the call; resolves with its path. ErrorCode::invalidArgument
  /// without durability, notReady before the model is initialized.
  kj::Promise<Result<std::string>> checkpointNow();
  /// Durability::newestPart() and recordWhole(). ErrorCode::invalidArgument without durability.
  kj::Promise<Result<NewestPart>> newestPart();
  kj::Promise<Status> recordWhole(WholeCheckpoint whole);
  /// Publishes the last version, unless the model continues elsewhere, and saves what `durability` has not
  /// saved yet. Blocks; call when no more updates arrive.
  Status saveLast(bool continuesElsewhere);
  /// Opens the published versions, if the configuration has `publish`; call once, before beginSaving().
  /// `hasAll`: this daemon has all versions that readers may know. Blocks.
  Status openVersions(bool hasAll = true);
  /// A standby's copy of its primary's published versions, which come with the image; null: `config` has
  /// none. Threads as makeCopy().
  Result<std::unique_ptr<StandbyFiles>> makeVersionsCopy(Env& image, const DaemonConfig& config) const;
  /// Published versions; null: not opened, or the configuration has no `publish`. These objects are as
  /// thread-safe as their classes say, and live as long as the host.
  const std::shared_ptr<VersionStore>& versions() const { return versions_; }
  /// Their folder; empty: they are in memory.
  std::string versionsPath() const { return versionsAreDurable() ? versionsFolder_ : ""; }
  /// Who makes the versions: one of the two, or neither where they come from another daemon.
  Publisher* publisher() { return publisher_.get(); }
  PartsIntake* intake() { return intake_.get(); }
  /// Before the model moves away: no version is made from when the promise resolves, and none is removed or
  /// leased from freezeVersions() on, until releaseVersions(). `why`: the error for callers that are refused.
  kj::Promise<void> holdVersions();
  void freezeVersions(Error why);
  void releaseVersions();
  /// Writes a published version to `to`, see VersionStore::giveTo().
  kj::Promise<Result<VersionStore::Given>> giveVersionTo(std::shared_ptr<Env> to, uint64_t after);
  /// Whether the model is being rolled back to a published version.
  bool rollsBack() const { return rollsBack_; }
  /// Forgets the departed ranks, so that the next daemon starts a new run. Blocks.
  Status clearDepartedRanks() { return durability_->clearDepartedRanks(); }
  /// Whether the model, or rows of its tables, which `save` does not write, are lost when the daemon ends.
  bool losesModel() const;
  DurabilityStatus durability() const { return durability_->status(); }
  /// Fills in model, shards and durability.
  void fillStatus(DaemonStatus& status) const;

  kj::Promise<Status> provideModel(ModelSpec model, std::string optimizer) override;
  bool hosts(const ModelSpec& model) const override { return models_->serves(model); }
  bool hasModel() const override { return models_->model() != nullptr; }
  bool dropUninitialized() override { return models_->dropUninitialized(); }
  kj::Promise<void> saveValues() override;
  Status mayTrain(const TrainerProcess& process, uint32_t worldSize) const override;
  void processBegan(ProcessId id, const TrainerProcess& process,
                    std::shared_ptr<SessionCounters> counters) override;
  void processEnded(ProcessId id) override { processes_.erase(id); }
  void sessionBegan(ProcessId id, const TrainerRef& trainer) override;
  void sessionEnded(ProcessId id) override;
  void includeInRounds(const TrainerRef& trainer) override {
    if (!trainer.bridges) models_->join(trainer);  // policies ignore a bridge
  }
  void excludeFromRounds(SessionId session) override { models_->leave(session); }
  kj::Promise<void> whenPushesDrained(ProcessId id) override;
  void drop(ProcessId id, Step step) override;
  GuardedSamples& samplePlan() override { return *durability_->samples(); }
  void assigned(const PlanTerms& plan, const SampleAssignment& assignment) override {
    newestDeal_ = durability_->assigned({plan, assignment});
  }
  kj::Promise<void> whenAssigned() override;
  kj::Promise<Status> saveDepartedRanks(Departed departed) override;

 private:
  struct Process {
    TrainerProcess process;
    std::shared_ptr<SessionCounters> counters;
    std::shared_ptr<ServedModel> model;
    TrainerRef trainer;                  // of its newest session
    bool sendsOptimizer = false;         // while it is joined
    std::vector<Step> dropped;           // dropped before `pushes` existed
    std::shared_ptr<PushServer> pushes;  // null until a loop serves the process
  };

  Process* find(ProcessId id);
  /// Checks limits.sessions_bytes for the pushes of one more process. ErrorCode::overloaded.
  Status checkSessions(const TrainerProcess& process) const;
  /// Checks that there is a folder for checkpoints. ErrorCode::invalidArgument.
  Status checkKeeps() const;
  /// The published version `number`, if the model can be rolled back to it. Errors: invalidArgument,
  /// notReady.
  Result<VersionInfo> findToRollBack(uint64_t number) const;
  /// The state of the model at a published version, from checkpoint and log. Blocks; on any thread.
  Result<std::shared_ptr<const ModelState>> rebuildAt(const VersionInfo& version,
                                                      const ParameterStore& current) const;
  /// Whether versions are on the disk, rather than in memory.
  bool versionsAreDurable() const;
  /// Takes the place of the versions. Blocks.
  Status placeVersions();
  VersionLedger::Terms versionTerms() const;
  PartsIntake::Terms intakeTerms() const;
  /// Starts to publish the model, if it is initialized.
  void beginPublishing();

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  DaemonMetrics& metrics_;
  const MemoryBudgets& budgets_;
  StepOutcomes& outcomes_;
  const std::shared_ptr<Replicator> log_;  // null: no replication
  // Valid after open().
  std::unique_ptr<Durability> durability_;
  std::unique_ptr<ModelHost> models_;
  std::shared_ptr<Env> versionFiles_;
  std::string versionsFolder_;
  std::shared_ptr<LockedFolder> lockedVersions_;  // of a store of versions on the disk; null otherwise
  std::shared_ptr<VersionStore> versions_;        // null: not opened, or the configuration has no `publish`
  std::shared_ptr<RoundQueue> rounds_;            // null: versions are not of the rounds of several daemons
  std::unique_ptr<Publisher> publisher_;          // null: versions are not from training
  std::unique_ptr<PartsIntake> intake_;           // null: they are not from publishers
  std::map<ProcessId, Process> processes_;
  uint64_t newestDeal_ = 0;  // in Durability's numbering
  WhileQuiesced whileQuiesced_;
  bool rollsBack_ = false;
  Background background_;
  CheckpointRequests askedCheckpoints_;
};

}  // namespace psd
