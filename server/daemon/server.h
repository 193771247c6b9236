#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "common/types/stopwatch.h"
#include "server/auth/authenticator.h"
#include "server/config/daemon_config.h"
#include "server/daemon/listener.h"
#include "server/daemon/server_group.h"
#include "server/daemon/tls_door.h"
#include "server/hosting/parameter_host.h"
#include "server/limits/descriptor_budget.h"
#include "server/loop/background.h"
#include "server/loop/event_loop.h"
#include "server/metrics/recent_rate.h"
#include "server/move/incoming_move.h"
#include "server/move/outgoing_move.h"
#include "server/replica/replicator.h"
#include "server/rpc/outgoing_answers.h"
#include "server/service/administration.h"

namespace psd {

/// What the run of a daemon with this configuration goes by.
RunTerms runTermsOf(const DaemonConfig& config);

/// A daemon: its listeners, its event-loop threads, who is in (Coordinator) and the parameters
/// (ParameterHost), wired together, and their orderly end. Owned by the control loop's thread, which is the
/// caller's.
class Server {
 public:
  /// Reads the configuration again, as at the start. Called on a thread of its own; may block.
  using Reread = std::function<Result<LoadedConfig>()>;
  /// Makes the server's part in its group, where an engine is configured.
  using MakeGroup =
      std::function<Result<std::unique_ptr<ServerGroup>>(Server& server, kj::AsyncIoContext& io, Env& env)>;

  /// `env` and `io` outlive the server. `descriptors` bounds the connections beside limits.connections.
  Server(kj::AsyncIoContext& io, LoadedConfig loaded, std::vector<std::shared_ptr<Backend>> backends,
         Env& env, Reread reread, DescriptorBudget descriptors = {}, MakeGroup makeGroup = nullptr);
  ~Server();

  /// Goes on with what a daemon before this one saved, or makes the model that the config names. Blocks.
  /// start() does so where the daemon is in no group.
  Status prepare();
  /// Where what is logged goes to a standby; null: no engine is configured.
  const std::shared_ptr<Replicator>& replicator() const { return replicator_; }
  /// Binds the addresses, prepares the model that the config names, starts the threads and accepts.
  Status start();
  /// What is listened on, with the ports that were chosen.
  std::vector<Address> addresses() const;
  /// Where its page is, for who begins anew in its place.
  void setPages(std::vector<std::string> pages) { pages_ = std::move(pages); }
  const std::vector<std::string>& pages() const { return pages_; }
  /// This daemon's part in its pair; null: no engine is configured.
  const GroupMember* group() const { return group_ ? &group_->member() : nullptr; }
  /// What the daemon could not do, so that it ended; ok() otherwise.
  const Status& failure() const { return failure_; }
  /// prepare(), but for what came by a move that is not known to count, which waits until it is. Blocks.
  Status goOn();
  /// Nobody is let in while `closed` says why, or a move does. Before any trainer.
  void keepDoor(std::function<std::optional<Error>()> closed);
  /// A model has come here that may not count, or comes.
  bool moveUnderWay() const { return incoming_.turnedAway().has_value(); }
  /// The model is served by other daemons, as those that this one serves it with have decided.
  void modelMovedAway(MoveMark mark) { outgoing_.adopt(std::move(mark)); }
  /// Ends the daemon with an Error: it cannot serve.
  void fail(const Status& why);
  Coordinator& coordinator() { return coordinator_; }
  ParameterHost& host() { return host_; }
  /// Who may do what, for whatever speaks another protocol to callers. Thread-safe.
  Authenticator& authenticator() { return authenticator_; }
  /// How this daemon speaks TLS, for whatever else listens. Thread-safe.
  const TlsDoor& tlsDoor() const { return tlsDoor_; }
  DaemonMetrics& metrics() { return counters_; }
  const LoadedConfig& loaded() const { return loaded_; }
  /// No gradient begins any more. Resolves once those that have begun are done; false: not within
  /// limits.drain_ms.
  kj::Promise<bool> closeGates();
  void openGates();
  /// Breaks the connections of all trainers.
  void letTrainersGo();
  /// Goes by another configuration, before anybody was let in.
  void goBy(LoadedConfig loaded);
  /// For services on an event loop.
  ControlLoop& controlLoop() { return controlLoop_; }
  Administration& administration() { return administration_; }
  /// Counts an answer that no connection of RPC gives, until the result goes; null: there is no room for it
  /// (limits.all_outgoing_bytes).
  std::shared_ptr<const void> roomForAnswer(uint64_t bytes) {
    return answers_.take(bytes, loaded_.config.limits.allOutgoingBytes);
  }
  /// The event loops, for services that come over no connection; they may hold them beyond the threads' end.
  kj::Promise<std::vector<std::shared_ptr<EventLoop>>> loops();

  /// Serves until a stop is requested, then: no new connections or updates, what has begun is
  /// finished (limits.drain_ms), trainers are told, `whenQuiet` runs, whoever waits for the end is told what
  /// came of it, threads end. Where another daemon is to go on, new updates wait and are never answered, and
  /// those that wait for other trainers go on waiting: they are sent again to that daemon.
  kj::Promise<void> run(std::function<Status()> whenQuiet);
  /// Goes over to the configuration as it reads now: no gradient begins any more, those that have begun end
  /// (limits.drain_ms), all policies change at once, and it goes on. Gives the change, for people. On an
  /// error nothing has changed.
  kj::Promise<Result<std::string>> reload(const std::string& by);
  /// Goes over to the configuration that holds but for one key, "optimizer.lr=0.05", as reload() does.
  kj::Promise<Result<std::string>> set(const std::string& assignment, const std::string& by);
  /// Whether set() of that would be taken, or reload() where it is empty, as far as can be told before
  /// trainers are stopped: gives the change, for people. Nothing changes, and it holds up neither a reload
  /// nor a move.
  kj::Promise<Result<std::string>> checkChange(const std::string& assignment);
  /// What SIGTERM, with which service managers also restart, ends: where another daemon goes on with the
  /// model, now or when it is started, the run does not end with this one.
  EndOf endedBySigterm() const;
  /// Cuts the waiting of an end that has begun short.
  void hurry() { hurry_ = true; }

  DaemonStatus status() const;

 private:
  using Condition = std::function<bool(EventLoop&)>;

  /// Resolves when `settled(loop)` holds on every loop (true) or drain_ms have passed (false).
  kj::Promise<bool> settle(Condition settled);
  kj::Promise<bool> poll(std::shared_ptr<Condition> settled, kj::TimePoint deadline);
  kj::Promise<void> onEveryThread(std::function<kj::Promise<void>(EventLoopThread&)> work);
  /// onEveryLoop(), which nobody waits for, after what they were told so before.
  void tellLoops(std::function<void(EventLoop&)> work);
  kj::Promise<void> onEveryLoop(std::function<void(EventLoop&)> work);
  /// How reload() and set() read.
  Reread rereadOfFile() const;
  Result<Reread> rereadWith(const std::string& assignment) const;
  /// Whether now is a time for it.
  Status mayTakeOver();
  /// Whether the model and its trainers go on under that configuration.
  Status mayChangeTo(const LoadedConfig& next) const;
  kj::Promise<Result<std::string>> takeOver(Reread reread, const std::string& by);
  /// Tells, as events, of checkpoints that were taken or failed since it was called before.
  void noteCheckpoints();
  kj::Promise<Result<std::string>> changeTo(LoadedConfig next);
  kj::Promise<Status> changeAtRest(const LoadedConfig& next);
  /// No update begins any more; resolves as settle() does when those that have begun are done.
  kj::Promise<bool> drain();
  /// Where the run goes on elsewhere: the group does without this daemon from now on.
  kj::Promise<void> leaveGroup();
  /// Where the run ends: so it does for the standby.
  kj::Promise<Status> endGroup();
  /// What limits.connections comes to; a warning where the system allows no more.
  uint32_t connectionsMax() const;
  void warnOfHaste(bool settled) const;
  kj::Promise<void> stopThreads();
  void handOver(AcceptedSocket accepted, bool tls, bool reserved);
  /// Serves a peer that is in.
  void serve(EventLoop& loop, Entrant entrant);
  /// From now on other rules of who may do what hold. Gives what has changed, for people.
  kj::Promise<std::string> follow(std::shared_ptr<const AuthRules> rules);
  /// Where other daemons reach this one.
  std::vector<std::string> reachableAt() const;
  /// Goes on from what is here, unless it has moved away; nobody is let in who is to be elsewhere.
  Status prepareAlone();
  kj::Promise<void> keepTicking();
  kj::Promise<void> watchLeases();

  kj::AsyncIoContext& io_;
  Env& env_;
  LoadedConfig loaded_;
  const std::shared_ptr<Replicator> replicator_;  // null: no engine is configured
  const Reread reread_;
  const MakeGroup makeGroup_;
  const DescriptorBudget descriptors_;
  const Stopwatch uptime_;
  DaemonMetrics counters_;
  RecentRate gradientRate_;
  MemoryBudgets budgets_;
  OutgoingAnswers answers_{budgets_};
  StepReports reports_;
  ParameterHost host_;
  Coordinator coordinator_;
  ControlLoop controlLoop_;
  Authenticator authenticator_;
  TlsDoor tlsDoor_;
  Administration administration_;
  LoopEnvironment environment_;
  OutgoingMove outgoing_;
  IncomingMove incoming_;
  std::unique_ptr<ServerGroup> group_;  // null: no engine is configured, and the daemon is alone
  std::vector<Address> addresses_;
  std::vector<std::string> pages_;
  Status failure_;
  std::vector<std::unique_ptr<EventLoopThread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  size_t nextThread_ = 0;
  bool hurry_ = false;
  bool reloading_ = false;
  uint64_t checkpoints_ = 0, checkpointFailures_ = 0;  // as events tell of them
  Background background_;
  kj::Promise<void> toLoops_ = kj::READY_NOW;  // what they were told last
  kj::Promise<void> ticks_ = kj::READY_NOW;
  kj::Promise<void> leaseWatch_ = nullptr;
};

}  // namespace psd
