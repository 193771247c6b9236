#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/types/bridge.h"
#include "server/checkpoint/durability.h"
#include "server/coordination/coordinator.h"
#include "server/coordination/hosting.h"
#include "server/hosting/asked_checkpoints.h"
#include "server/limits/memory_budgets.h"
#include "server/loop/background.h"
#include "server/model/model_host.h"
#include "server/push/push_server.h"
#include "server/replica/standby_disk.h"

namespace psd {

/// Holds the parameters: the model that is served, what is saved of it, and what each process of a trainer
/// pushes. Who is in, a Coordinator tells it.
///
/// Owned by the control loop's thread, on which every method is called.
class ParameterHost final : public Hosting {
 public:
  /// The rest of a session: what a trainer pulls from and pushes to. Null where its process is gone.
  struct Place {
    std::shared_ptr<ServedModel> model;
    std::shared_ptr<PushServer> pushes;
  };

  /// `env`, `metrics`, `budgets` and `outcomes` outlive it. `log`: where other daemons follow this one; else
  /// null.
  ParameterHost(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
                Env& env, DaemonMetrics& metrics, const MemoryBudgets& budgets, StepOutcomes& outcomes,
                std::shared_ptr<ReplicatedLog> log = nullptr);

  /// Takes the folder of what is saved. Before anything else, after mayFollow().
  Status open();
  /// Called with each checkpoint that is complete, before anybody hears of it; where it fails the checkpoint
  /// counts as one that failed. After open(), before prepare(); on any thread.
  void beforeCheckpointTold(std::function<Status()> call) {
    durability_->beforeCheckpointTold(std::move(call));
  }
  /// Goes on from a checkpoint, or loads or allocates the model that the config names. Blocks; after open().
  Result<PriorRun> prepare();
  /// Writes a file, and then a checkpoint of the model as it is, to a stream; gives the checkpoint's path.
  struct FileBeside {
    std::string name, text;
  };
  kj::Promise<Result<std::string>> copyTo(std::shared_ptr<Env> to, FileBeside beside);
  /// Makes a primary's model of its checkpoint, by the primary's configuration. From any thread; blocks.
  Result<std::shared_ptr<ServedModel>> makeCopy(Env& files, const Checkpoint& checkpoint,
                                                const DaemonConfig& config) const {
    return models_->copyFrom(files, checkpoint, config);
  }
  /// Where the copy is kept on this daemon's disk while it follows. As makeCopy(); see StandbyDisk.
  std::unique_ptr<StandbyDisk> makeDisk(const std::shared_ptr<ServedModel>& copy,
                                        std::function<Status()> mark) const {
    return std::make_unique<StandbyDisk>(*durability_, ModelHost::savingSource(copy), std::move(mark));
  }
  /// Shows the copy, which goes by `config`; nobody may use it before serveCopy().
  void showCopy(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config);
  /// The copy is the model from now on, with what its primary knew besides.
  PriorRun serveCopy(SamplePlan samples, std::optional<Departed> departed);
  /// Writes a checkpoint of the model as it is, but for the files that are not `wanted`, to a stream; gives
  /// its path.
  kj::Promise<Result<std::string>> giveTo(std::shared_ptr<Env> to,
                                          std::function<bool(const std::string&)> wanted);
  /// This daemon's partition of a model, from what other daemons gave: the checkpoints at `paths`, in the
  /// order of theirs. Nobody sees it before takeIn().
  struct Arrived {
    std::shared_ptr<ServedModel> model;
    SamplePlan samples;
  };
  kj::Promise<Result<Arrived>> makePartition(std::shared_ptr<Env> files, std::vector<std::string> paths);
  /// That is the model from now on. Resolves when it is on the disk, where it is to be, with who has come and
  /// gone.
  kj::Promise<Status> takeIn(Arrived arrived, Departed departed);
  /// Has no model any more.
  void drop() { models_->drop(); }
  /// Ends the saving of a model that is dropped. Blocks; on any thread.
  void stopSaving() { models_->stopSaving(); }
  /// Begins to save the model, if it has its values. Blocks; once, before any trainer.
  void beginSaving() { models_->beginSavingAtOnce(); }
  /// Whether the devices could do what the policies of `config` ask for among so many trainers (0: not known
  /// yet), which push with these codecs.
  Status mayFollow(const DaemonConfig& config, uint32_t trainers,
                   std::span<const std::pair<Rank, std::string>> pushCodecs) const;
  /// Goes over to another configuration, see ModelHost::adopt().
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);

  /// Where a trainer's process trains. `loop`: the caller's; what the process pushes is worked on there, or
  /// where it was worked on before.
  Place placeOf(ProcessId id, const std::shared_ptr<EventLoop>& loop);
  /// The model for a reader; an empty `model` matches any.
  Result<std::shared_ptr<ServedModel>> observe(const ModelSpec& model) const;

  /// What it goes by now.
  const DaemonConfig& config() const { return *config_; }
  /// From open() on.
  ModelHost& models() { return *models_; }
  /// Takes a checkpoint that begins after the call; gives its path. ErrorCode::invalidArgument without
  /// durability, notReady before there is something to save.
  kj::Promise<Result<std::string>> checkpointNow();
  /// Durability::newestPart() and keepWhole(). ErrorCode::invalidArgument without durability.
  kj::Promise<Result<NewestPart>> newestPart();
  kj::Promise<Status> keepWhole(WholeCheckpoint whole);
  /// Saves what `durability` has not saved yet. Blocks; when no update comes any more.
  Status saveLast() { return durability_->finish(); }
  /// The next daemon begins a run of its own. Blocks.
  Status forgetFinishedRanks() { return durability_->forgetFinishedRanks(); }
  DurabilityStatus durability() const { return durability_->status(); }
  /// Model, shards, and what is saved.
  void fillStatus(DaemonStatus& status) const;

  kj::Promise<Status> provide(ModelSpec model) override { return models_->provide(std::move(model)); }
  bool hosts(const ModelSpec& model) const override { return models_->serves(model); }
  bool hasModel() const override { return models_->model() != nullptr; }
  bool dropUnclaimed() override { return models_->dropUnclaimed(); }
  kj::Promise<void> keepValues() override { return models_->keepValues(); }
  Status mayTrain(const TrainerProcess& process, uint32_t worldSize) const override;
  void processBegan(ProcessId id, const TrainerProcess& process,
                    std::shared_ptr<SessionCounters> counters) override;
  void processEnded(ProcessId id) override { processes_.erase(id); }
  void sessionBegan(ProcessId id, const TrainerRef& trainer) override;
  void sessionEnded(ProcessId id) override;
  void countIn(const TrainerRef& trainer) override {
    if (trainer.rank != kBridgeRank) models_->join(trainer);  // no policy counts on a bridge
  }
  void countOut(SessionId session) override { models_->leave(session); }
  kj::Promise<void> whenLanded(ProcessId id) override;
  void drop(ProcessId id, Step step) override;
  GuardedSamples& samplePlan() override { return *durability_->samples(); }
  void assigned(const PlanTerms& plan, const SampleDeal& deal) override {
    newestDeal_ = durability_->dealt({plan, deal});
  }
  kj::Promise<void> whenAssigned() override;
  kj::Promise<Status> keepFinishedRanks(Departed departed) override;

 private:
  struct Process {
    TrainerProcess process;
    std::shared_ptr<SessionCounters> counters;
    std::shared_ptr<ServedModel> model;
    TrainerRef trainer;                  // of its newest session
    std::vector<Step> dropped;           // before `pushes` was made
    std::shared_ptr<PushServer> pushes;  // once a loop serves the process
  };

  Process* find(ProcessId id);
  /// Whether limits.sessions_bytes has room for what the process pushes. ErrorCode::overloaded.
  Status checkSessions(const TrainerProcess& process) const;
  /// Whether there is a folder for checkpoints. ErrorCode::invalidArgument.
  Status checkKeeps() const;

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  DaemonMetrics& metrics_;
  const MemoryBudgets& budgets_;
  StepOutcomes& outcomes_;
  const std::shared_ptr<ReplicatedLog> log_;  // null: nobody follows
  // From open() on.
  std::unique_ptr<Durability> durability_;
  std::unique_ptr<ModelHost> models_;
  std::map<ProcessId, Process> processes_;
  uint64_t newestDeal_ = 0;  // as Durability numbers them
  Background background_;
  AskedCheckpoints askedCheckpoints_;
};

}  // namespace psd
