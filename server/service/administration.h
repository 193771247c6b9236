#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/types/version_info.h"
#include "server/cluster/replica_controller.h"
#include "server/loop/worker_pool.h"
#include "server/move/incoming_move.h"
#include "server/move/outgoing_move.h"
#include "server/service/control_loop.h"

namespace psd {

/// Operator requests to the daemon, independent of protocol. Requests that change something take and log
/// `by`, the caller. Thread-safe; outlives the loops.
class Administration {
 public:
  /// Both outlive it.
  Administration(ControlLoop& control, Daemon& daemon) : control_(control), daemon_(daemon) {}

  kj::Promise<DaemonStatus> status() {
    return control_.run([this](Coordinator&, ParameterHost&) { return daemon_.status(); });
  }
  /// Upper estimate of the size of the status() document, from the model, the trainers and the last document.
  kj::Promise<uint64_t> statusBytes() {
    return control_.run([this](Coordinator& coordinator, ParameterHost& host) {
      const uint64_t last = statusBytes_;
      return std::max(last + last / 16, statusBytesOf(coordinator, host));
    });
  }
  /// Records the size of such a document.
  void noteStatusBytes(uint64_t bytes) { statusBytes_ = bytes; }
  /// Upper bound on the size of the hotRows() document.
  kj::Promise<uint64_t> hotRowsBytes() {
    return control_.run([](Coordinator&, ParameterHost& host) {
      const auto model = host.models().model();
      return kFixedBytes + (model ? model->store->model().tables.size() * kHotTableBytes : 0);
    });
  }
  kj::Promise<Result<HotRowsStatus>> hotRows() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.models().hotRows(); });
  }
  /// Ranks of the trainers that wait for others, ascending.
  kj::Promise<std::vector<uint32_t>> waiters() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.models().waiters(); });
  }
  /// Applies the configuration as it reads now; returns a human-readable description of the change.
  kj::Promise<Result<std::string>> reload(std::string by) {
    return control_.run(
        [this, by = std::move(by)](Coordinator&, ParameterHost&) mutable { return daemon_.reload(by); });
  }
  /// Changes one key, "optimizer.lr=0.05", of the current configuration; returns a human-readable description
  /// of the change.
  kj::Promise<Result<std::string>> set(std::string assignment, std::string by) {
    return control_.run([this, assignment = std::move(assignment), by = std::move(by)](
                            Coordinator&, ParameterHost&) mutable { return daemon_.set(assignment, by); });
  }
  /// Whether set() of `assignment` would succeed, or reload() if it is empty; returns a human-readable
  /// description of the change.
  kj::Promise<Result<std::string>> checkChange(std::string assignment) {
    return control_.run([this, assignment = std::move(assignment)](Coordinator&, ParameterHost&) mutable {
      return daemon_.checkChange(assignment);
    });
  }
  /// Writes a checkpoint now; returns its path once it is complete.
  kj::Promise<Result<std::string>> checkpoint(std::string by) {
    return control_.run([by = std::move(by)](Coordinator& coordinator, ParameterHost& host) {
      coordinator.logOperatorRequest("a checkpoint", by);
      return host.checkpointNow();
    });
  }
  /// The newest checkpoint of this daemon.
  kj::Promise<Result<NewestPart>> newestPart() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.newestPart(); });
  }
  /// Records a checkpoint of the whole model, of which this daemon has a part.
  kj::Promise<Status> recordWhole(WholeCheckpoint whole) {
    return control_.run([whole = std::move(whole)](Coordinator&, ParameterHost& host) mutable {
      return host.recordWhole(std::move(whole));
    });
  }
  /// Ends the session of the trainer with this rank and blocks its process from joining; returns a
  /// human-readable description of it.
  kj::Promise<Result<std::string>> removeTrainer(Rank rank, std::string by) {
    return control_.run([rank, by = std::move(by)](Coordinator& coordinator, ParameterHost&) {
      return coordinator.remove(rank, by);
    });
  }
  /// Events after the event numbered `after`; `wait`: waits until there are any.
  kj::Promise<DaemonEvents> events(uint64_t after, bool wait) {
    return control_.run([after, wait](Coordinator& coordinator, ParameterHost&) -> kj::Promise<DaemonEvents> {
      if (wait) return coordinator.events().nextAfter(after);
      return coordinator.events().after(after);
    });
  }
  /// This daemon's replica set; null if it is in none, as before the call. Call before any request.
  void setReplicaSet(ReplicaController* replicaSet) { replicaSet_ = replicaSet; }
  /// A daemon asks to follow this one; `loop` is that of its connection.
  kj::Promise<Result<ReplicaController::Admitted>> admit(FollowerRequest request,
                                                         std::shared_ptr<EventLoop> loop) {
    return control_.run([this, request = std::move(request), loop = std::move(loop)](
                            Coordinator&, ParameterHost&) mutable -> Result<ReplicaController::Admitted> {
      if (!replicaSet_) return noReplicaSet();
      return replicaSet_->admit(request, std::move(loop));
    });
  }
  kj::Promise<void> feedEnded(std::shared_ptr<FeedHandle> feed, Status why) {
    return control_.run([this, feed = std::move(feed), why = std::move(why)](Coordinator&, ParameterHost&) {
      if (replicaSet_) replicaSet_->feedEnded(feed, why);
    });
  }
  /// See ReplicaController::whenServing().
  kj::Promise<uint64_t> whenServing(uint64_t known, uint64_t primary) {
    return control_.run([this, known, primary](Coordinator&, ParameterHost&) -> kj::Promise<uint64_t> {
      if (!replicaSet_) return kj::NEVER_DONE;
      return replicaSet_->whenServing(known, DaemonId{primary});
    });
  }
  /// Number of this daemon's process, and ReplicaController::folderTerm().
  struct ProcessAndFolder {
    uint64_t daemon = 0;
    uint64_t folderTerm = 0;
  };
  kj::Promise<ProcessAndFolder> processAndFolder() {
    return control_.run([this](Coordinator& coordinator, ParameterHost&) {
      return ProcessAndFolder{coordinator.daemonId(), replicaSet_ ? replicaSet_->folderTerm() : 0};
    });
  }
  /// Promotes the standby; this daemon becomes its standby.
  kj::Promise<Status> switchOver(std::string by) {
    return runReplicaSetAction("a switchover", std::move(by), &ReplicaController::switchOver);
  }
  /// Replaces a dead primary with the state held here, accepting any data loss.
  kj::Promise<Status> recover(std::string by) {
    return runReplicaSetAction("a recovery", std::move(by), &ReplicaController::recover);
  }
  /// Threads for calls about versions that block; only where versions() is not an Error.
  WorkerPool& workers() { return *workers_; }
  /// The published versions and who makes them, as in `host`, once the daemon serves. Call at most once.
  /// `self`: this daemon's number in VersionFreshness::path.
  void setVersions(ParameterHost& host, uint64_t self) {
    self_ = self;
    if (host.versions()) workers_ = std::make_unique<WorkerPool>(kWorkers);
    versions_ = host.versions().get();
    publisher_ = host.publisher();
    intake_ = host.intake();
    hasVersionsOrNone_ = true;
  }
  /// ErrorCode::invalidArgument if none are configured, standby before setVersions().
  Result<std::reference_wrapper<VersionStore>> versions() const {
    if (!hasVersionsOrNone_) return isStandby();
    VersionStore* const versions = versions_;
    if (!versions) return noVersions();
    if (versions->hidden()) return versionsArrive();
    return std::ref(*versions);
  }
  /// How current the published versions are, from now on: where they come from another daemon. Call before
  /// setVersions(), at most once. `freshness` is thread-safe.
  void setFreshness(std::function<VersionFreshness()> freshness) { freshness_ = std::move(freshness); }
  /// How the published versions compare with those of their source. Errors as of versions().
  Result<VersionFreshness> freshness() const {
    PSD_RETURN_IF_ERROR(versions().status());
    if (freshness_) return freshness_();
    const auto newest = versions_.load()->find(0);
    VersionFreshness here{.newest = newest.ok() ? newest->number : 0,
                          .history = newest.ok() ? newest->history : 0};
    here.sourceNewest = here.newest;
    here.sourceHistory = here.history;
    here.path = {self_};
    return here;
  }
  /// Where programs that train elsewhere publish. ErrorCode::invalidArgument if they do not here.
  Result<std::reference_wrapper<PartsIntake>> intake() const {
    PartsIntake* const intake = intake_;
    if (intake) return std::ref(*intake);
    PSD_RETURN_IF_ERROR(versions().status());
    const std::string what =
        freshness_ ? "copies the versions of another one" : "publishes the model that it trains";
    return Error{ErrorCode::invalidArgument,
                 "this daemon " + what + "; a store of versions has publish.from \"publishers\""};
  }
  /// Publishes a version now.
  kj::Promise<Result<VersionInfo>> publish(std::string by) {
    return control_.run([this, by = std::move(by)](Coordinator& coordinator,
                                                   ParameterHost&) -> kj::Promise<Result<VersionInfo>> {
      coordinator.logOperatorRequest("a version", by);
      if (const auto has = versions(); !has.ok()) return Result<VersionInfo>(has.error());
      const ServingState& serving = coordinator.serving();
      if (serving.outgoing().moved()) return Result<VersionInfo>(serving.movedError());
      if (publisher_) return publisher_.load()->publish();
      return Result<VersionInfo>(ErrorCode::invalidArgument,
                                 freshness_
                                     ? "this daemon copies the versions of another one (publish.from is "
                                       "\"upstream\"): publish there"
                                     : "this daemon stores the versions of other programs (publish.from is "
                                       "\"publishers\"): they publish, with psd.Publisher");
    });
  }
  /// Rolls the model back to a published version; resolves with the version that this makes.
  kj::Promise<Result<VersionInfo>> rollBack(uint64_t number, std::string by) {
    return control_.run(
        [this, number, by = std::move(by)](Coordinator& coordinator,
                                           ParameterHost& host) -> kj::Promise<Result<VersionInfo>> {
          const std::string what = "a rollback to version " + std::to_string(number);
          coordinator.logOperatorRequest(what, by);
          if (const auto has = versions(); !has.ok()) return Result<VersionInfo>(has.error());
          if (coordinator.serving().outgoing().underWay()) {
            return Result<VersionInfo>(ErrorCode::notReady,
                                       "the model is about to move to other daemons; try again");
          }
          return host.rollBack(
              number, [&coordinator] { return coordinator.departed(); },
              [&coordinator, number] {
                coordinator.events().add("rollback",
                                         "the model is that of version " + std::to_string(number) + " again");
              });
        });
  }
  /// This daemon's roles as source and target of a move. Call before any request.
  void setMoves(OutgoingMove* outgoing, IncomingMove* incoming) {
    outgoing_ = outgoing;
    incoming_ = incoming;
  }
  /// Runs `work(outgoing, incoming)` on the control loop.
  template <class Work>
  auto withMoves(Work work) {
    return control_.run([this, work = std::move(work)](Coordinator&, ParameterHost&) mutable {
      return work(*outgoing_, *incoming_);
    });
  }
  /// withMoves(), logged as a request for `what`.
  template <class Work>
  auto withMovesFor(std::string by, const char* what, Work work) {
    return control_.run([this, by = std::move(by), what, work = std::move(work)](Coordinator& coordinator,
                                                                                 ParameterHost&) mutable {
      coordinator.logOperatorRequest(what, by);
      return work(*outgoing_, *incoming_);
    });
  }
  /// Resolves with the target once the model has moved from here; empty if the daemon ends first.
  kj::Promise<RecordedMove> whenMoved() {
    return withMoves([](OutgoingMove& outgoing, IncomingMove&) { return outgoing.whenMoved(); });
  }
  /// The outcome of a move from or to this daemon that was led by the process `lead`.
  kj::Promise<MoveOutcome> moveOutcome(uint64_t move, uint64_t lead) {
    return control_.run([move, lead](Coordinator& coordinator, ParameterHost&) {
      return coordinator.serving().outcome(move, lead == coordinator.daemonId());
    });
  }
  /// Ends the run; `wait`: resolves with the outcome of the daemon's final work.
  kj::Promise<Status> stop(std::string reason, bool wait, std::string by) {
    return control_.run([reason = std::move(reason), wait, by = std::move(by)](
                            Coordinator& coordinator, ParameterHost&) mutable -> kj::Promise<Status> {
      coordinator.requestStop(std::move(reason), EndOf::run, by);
      return wait ? coordinator.end().whenOutcome() : kj::Promise<Status>(Status());
    });
  }

 private:
  // Measured sizes of parts of documents, with a margin.
  static constexpr uint64_t kFixedBytes = 24u << 10, kShardBytes = 192, kTableBytes = 1024,
                            kTrainerBytes = 3072, kHotTableBytes = 2048, kVersionBytes = 768;
  static uint64_t statusBytesOf(const Coordinator& coordinator, ParameterHost& host) {
    uint64_t bytes = kFixedBytes + coordinator.present() * kTrainerBytes;
    if (const auto model = host.models().model()) {
      const ParameterStore& store = *model->store;
      bytes += (store.shardCount() + store.rowShardCount()) * kShardBytes +
               store.model().tables.size() * kTableBytes;
    }
    if (host.versions()) bytes += host.versions()->entries() * kVersionBytes;
    return bytes;
  }

  static constexpr size_t kWorkers = 2;
  static Error isStandby() {
    return {ErrorCode::standby, "this daemon does not serve: its primary has the published versions"};
  }
  static Error versionsArrive() {
    return {ErrorCode::standby,
            "the model and its published versions are being moved here from another daemon, and the move is "
            "not known to be committed"};
  }
  static Error noVersions() {
    return {ErrorCode::invalidArgument,
            "this daemon publishes no versions: its configuration has no `publish`"};
  }
  static Error noReplicaSet() {
    return {ErrorCode::invalidArgument,
            "this daemon is in no replica set: its configuration has no `engine`"};
  }
  /// Runs an action of the replica set that `by` requested, unless the model has moved away.
  kj::Promise<Status> runReplicaSetAction(const char* what, std::string by,
                                          kj::Promise<Status> (ReplicaController::*action)()) {
    return control_.run([this, what, by = std::move(by), action](Coordinator& coordinator,
                                                                 ParameterHost&) -> kj::Promise<Status> {
      coordinator.logOperatorRequest(what, by);
      if (!replicaSet_) return Status(noReplicaSet());
      const ServingState& serving = coordinator.serving();
      if (serving.outgoing().moved()) return Status(serving.movedError());
      return (replicaSet_->*action)();
    });
  }
  ControlLoop& control_;
  Daemon& daemon_;
  std::atomic<uint64_t> statusBytes_{0};
  ReplicaController* replicaSet_ = nullptr;
  std::atomic<VersionStore*> versions_{nullptr};
  std::atomic<Publisher*> publisher_{nullptr};
  std::atomic<PartsIntake*> intake_{nullptr};
  std::atomic<bool> hasVersionsOrNone_{false};
  std::atomic<uint64_t> self_{0};
  std::function<VersionFreshness()> freshness_;  // null: this daemon is the source
  OutgoingMove* outgoing_ = nullptr;
  IncomingMove* incoming_ = nullptr;
  std::unique_ptr<WorkerPool> workers_;  // last: its work uses what the members above refer to
};

}  // namespace psd
