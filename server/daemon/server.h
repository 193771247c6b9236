#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "common/types/stopwatch.h"
#include "server/auth/authenticator.h"
#include "server/checkpoint/replicator.h"
#include "server/client/version_replica.h"
#include "server/config/daemon_config.h"
#include "server/daemon/listener.h"
#include "server/daemon/replica_set_member.h"
#include "server/daemon/tls_acceptor.h"
#include "server/daemon/upkeep.h"
#include "server/hosting/daemon.h"
#include "server/hosting/parameter_host.h"
#include "server/limits/descriptor_budget.h"
#include "server/loop/background.h"
#include "server/loop/event_loop.h"
#include "server/metrics/recent_rate.h"
#include "server/move/incoming_move.h"
#include "server/move/outgoing_move.h"
#include "server/rpc/outgoing_answers.h"
#include "server/service/administration.h"
#include "server/serving/serving_state.h"

namespace psd {

/// The terms of the run of a daemon with this configuration.
RunTerms runTermsOf(const DaemonConfig& config);

/// A daemon: wires together listeners, event-loop threads, the joined trainers (Coordinator) and the
/// parameters (ParameterHost), and shuts them down in order. Owned by the control loop's thread, which is the
/// caller's.
class Server final : public Daemon {
 public:
  /// Rereads the configuration. Called on a background thread; may block.
  using Reread = std::function<Result<LoadedConfig>()>;

  /// `env` and `io` must outlive the server. `descriptors` limits the connections in addition to
  /// limits.connections.
  Server(kj::AsyncIoContext& io, LoadedConfig loaded, std::vector<std::shared_ptr<Backend>> backends,
         Env& env, Reread reread, DescriptorBudget descriptors = {});
  ~Server() noexcept(false) override;

  /// Resumes from the state that the previous daemon saved, or creates the model that the configuration
  /// names. Blocks. start() calls it if the daemon belongs to no replica set.
  Status prepare() override;
  /// Binds the addresses, prepares the model, starts the threads and accepts connections.
  Status start();
  /// The listening addresses, with the actual ports.
  std::vector<Address> addresses() const;
  /// The URLs of the daemon's page; a restarted process listens there again.
  void setPages(std::vector<std::string> pages) { pages_ = std::move(pages); }
  const std::vector<std::string>& pages() const { return pages_; }
  /// This daemon's membership in its replica set; null: no engine is configured.
  const ReplicaController* replicaSet() const { return replicaSet_ ? &replicaSet_->controller() : nullptr; }
  /// The error that ended the daemon; ok() if there was none.
  const Status& failure() const { return failure_; }
  Status resume() override;
  void adoptMove(const RecordedMove& move) override { outgoing_.adopt(move); }
  void fail(const Status& why) override;
  void exit(const std::string& reason) override;
  void note(const std::string& event, const std::string& line) override;
  [[noreturn]] void restart(const std::string& why) override;
  Coordinator& coordinator() { return coordinator_; }
  ParameterHost& host() { return host_; }
  /// Authenticates and authorizes callers, also of other protocols. Thread-safe.
  Authenticator& authenticator() { return authenticator_; }
  /// This daemon's TLS files, also for other listeners. Thread-safe.
  const TlsAcceptor& tlsAcceptor() const { return tlsAcceptor_; }
  DaemonMetrics& metrics() { return counters_; }
  const LoadedConfig& loaded() const override { return loaded_; }
  kj::Promise<bool> closeGates() override;
  void openGates() override;
  std::vector<std::string> reachableAt() const override;
  kj::Promise<Result<bool>> recordMove(const RecordedMove& move) override;
  Result<MoveOutcome> askLead(const MoveLead& lead, uint64_t move) const override;
  void disconnectTrainers() override;
  void replaceConfig(LoadedConfig loaded) override;
  /// For services on an event loop.
  ControlLoop& controlLoop() { return controlLoop_; }
  Administration& administration() { return administration_; }
  /// Reserves memory for an answer that is sent outside RPC connections, until the result is released; null:
  /// limits.all_outgoing_bytes is reached.
  std::shared_ptr<const void> reserveAnswer(uint64_t bytes) {
    return answers_.take(bytes, loaded_.config.limits.allOutgoingBytes);
  }
  /// The event loops, for services without a connection; the pointers may outlive the threads.
  kj::Promise<std::vector<std::shared_ptr<EventLoop>>> loops();

  /// Serves until a stop is requested. Then it refuses new connections and updates, drains what is in flight
  /// (limits.drain_ms), notifies trainers, runs `whenQuiesced`, reports its outcome to the callers that wait
  /// for the end, and stops the threads. If another daemon is to continue the run, new updates and those that
  /// wait for other trainers are never answered: trainers send them again to that daemon.
  kj::Promise<void> run(std::function<Status()> whenQuiesced);
  /// Holds back new gradients, drains those in flight (limits.drain_ms), switches all policies at once, and
  /// resumes.
  kj::Promise<Result<std::string>> reload(const std::string& by) override;
  kj::Promise<Result<std::string>> set(const std::string& assignment, const std::string& by) override;
  kj::Promise<Result<std::string>> checkChange(const std::string& assignment) override;
  /// What SIGTERM ends, which service managers also send to restart a daemon: only the daemon if another one
  /// continues with the model, now or once it is started; else the run.
  EndOf sigtermEnds() const;
  /// Shortens the shutdown in progress: stops waiting for what is in flight.
  void hurry() { hurry_ = true; }

  /// Follows the versions of other daemons no longer. Blocks. Idempotent.
  void endFollowing() {
    if (replica_) replica_->stop();
  }

  DaemonStatus status() const override;

 private:
  using Condition = std::function<bool(EventLoop&)>;

  /// Resolves when `settled(loop)` holds on every loop (true) or drain_ms have passed (false).
  kj::Promise<bool> settle(Condition settled);
  kj::Promise<bool> poll(std::shared_ptr<Condition> settled, kj::TimePoint deadline);
  kj::Promise<void> onEveryThread(std::function<kj::Promise<void>(EventLoopThread&)> work);
  /// Like onEveryLoop(), without a result to wait for; calls run in order.
  void postToLoops(std::function<void(EventLoop&)> work);
  kj::Promise<void> onEveryLoop(std::function<void(EventLoop&)> work);
  /// How reload() and set() read the next configuration.
  Reread rereadOfFile() const;
  Result<Reread> rereadWith(const std::string& assignment) const;
  /// Whether another daemon of the replica set is the primary, or may be.
  bool follows() const { return replicaSet_ && serving_.term() == 0; }
  /// Whether the model and its trainers can continue with that configuration.
  Status checkNextConfig(const LoadedConfig& next) const;
  kj::Promise<Result<std::string>> applyConfig(Reread reread, const std::string& by);
  /// Records an event for a checkpoint that was completed or has failed since the previous call.
  void noteCheckpoints();
  /// Records an event for each step of publishers that was abandoned.
  void noteAbandoned();
  kj::Promise<Result<std::string>> changeTo(LoadedConfig next);
  kj::Promise<Status> changeWhileQuiesced(const LoadedConfig& next);
  /// Runs `work` while new gradients are held back and none is incomplete. ErrorCode::deadlineExceeded after
  /// limits.drain_ms.
  kj::Promise<Status> whileQuiesced(std::function<kj::Promise<Status>()> work);
  /// Stops admitting updates; resolves like settle(), when those in flight are done.
  kj::Promise<bool> drain();
  /// If the run continues elsewhere: this daemon leaves its replica set.
  kj::Promise<void> leaveReplicaSet();
  /// If the run ends: ends it for the standby too.
  kj::Promise<Status> endReplicaSetRun();
  /// The effective limits.connections; logs a warning if the system allows fewer.
  uint32_t connectionsMax() const;
  void warnIfUnsettled(bool settled) const;
  kj::Promise<void> stopThreads();
  void handOver(AcceptedSocket accepted, bool tls, bool reserved);
  /// Serves an accepted peer.
  void serve(EventLoop& loop, AcceptedPeer acceptedPeer);
  /// Applies new authorization rules. Returns a human-readable description of the change.
  kj::Promise<std::string> follow(std::shared_ptr<const AuthRules> rules);
  /// Starts to follow the versions of other daemons if the configuration says so.
  Status beginFollowing();
  /// Resumes from the saved state unless the model has moved away.
  Status prepareAlone();
  /// What the daemon uses of its machine, and its logs and certificate.
  void fillUpkeep(DaemonStatus& status) const;
  /// Fills in what a move from or to this daemon changes in the state.
  void fillMoveState(DaemonStatus& status) const;
  kj::Promise<void> keepTicking();
  kj::Promise<void> watchLeases();

  kj::AsyncIoContext& io_;
  Env& env_;
  LoadedConfig loaded_;
  const std::shared_ptr<Replicator> replicator_;  // null: no engine is configured
  const Reread reread_;
  const DescriptorBudget descriptors_;
  const Stopwatch uptime_;
  DaemonMetrics counters_;
  RecentRate gradientRate_;
  MemoryBudgets budgets_;
  OutgoingAnswers answers_{budgets_};
  StepReports reports_;
  ParameterHost host_;
  ServingState serving_;
  Coordinator coordinator_;
  ControlLoop controlLoop_;
  Authenticator authenticator_;
  TlsAcceptor tlsAcceptor_;
  Administration administration_;
  LoopEnvironment environment_;
  OutgoingMove outgoing_;
  IncomingMove incoming_;
  std::unique_ptr<ReplicaSetMember> replicaSet_;  // null: no engine is configured
  std::unique_ptr<VersionReplica> replica_;       // null: versions come from no other daemon
  std::optional<Upkeep> upkeep_;                  // after start()
  std::vector<Address> addresses_;
  std::vector<std::string> pages_;
  Status failure_;
  std::vector<std::unique_ptr<EventLoopThread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  size_t nextThread_ = 0;
  bool hurry_ = false;
  uint64_t notedCheckpoints_ = 0, notedCheckpointFailures_ = 0;  // counts up to which events were recorded
  Background background_;
  kj::Promise<void> posted_ = kj::READY_NOW;  // the last postToLoops()
  kj::Promise<void> ticks_ = kj::READY_NOW;
  kj::Promise<void> leaseWatch_ = nullptr;
};

}  // namespace psd
