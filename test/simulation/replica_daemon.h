#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "server/replica/replica_state.h"
#include "server/serving/serving_state.h"
#include "test/simulation/replica_engine.h"
#include "test/simulation/replica_log.h"

namespace psd::testing {

/// A deliberate defect of the simulated daemon, to show that the simulation detects it.
enum class Broken {
  nothing,
  addThenWait,       ///< answers alone until the document names the standby
  answerThenRemove,  ///< answers alone as soon as it decides to remove the standby
  noCas,             ///< promotes itself whatever the document says
  noAnswerIsNo,      ///< treats a swap without an answer as rejected
  sameName,          ///< continues under its number after it died
  keepsState,        ///< steps down and keeps its state
  beginsAtOnce,      ///< creates a missing document without waiting for the previous serving daemon
  anyFolderBegins,   ///< starts the next run, or a first one, with whatever its folder has
  // Of moves:
  noAnswerIsNoMove,  ///< takes a move whose record has no answer for one that is not recorded
  admitsUndecided,   ///< the target admits trainers before the move is committed
  forgetsUnknown,    ///< the target discards the model when the command is gone
};

/// What a process leaves on its disk. A value type.
struct ReplicaDisk {
  ReplicaLog log;
  std::optional<FolderRecord> record;
  uint64_t moved = 0;  ///< the move by which the model went to other daemons
};

/// What a daemon saves.
enum class Saving {
  log,    ///< any daemon: everything that it has when it dies
  group,  ///< like durability.type log: a primary, once its first checkpoint is whole
  both,   ///< likewise, and a standby from its image on: replication.wait is standby_and_disk
  none,   ///< nothing
};

class ReplicaDaemon;

/// The owner of the daemons' processes.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  virtual ReplicaNetwork& network() = 0;
  virtual ReplicaEngine& engine() = 0;
  virtual Broken broken() const = 0;
  virtual Saving saving() const = 0;
  virtual bool finished() const = 0;
  /// The process with that number, if it is alive.
  virtual ReplicaDaemon* living(DaemonId id) = 0;
  virtual size_t placeOf(DaemonId id) const = 0;
  virtual void answered(ReplicaDaemon& daemon, uint64_t term, const ReplicaPush& push) = 0;
  virtual void steppedDown(ReplicaDaemon& daemon, bool handedOver) = 0;
  virtual void ended(ReplicaDaemon& daemon) = 0;
  /// A move is over that had begun here; the model has moved if its ServingState says so.
  virtual void moveOver(ReplicaDaemon&) {}
};

/// A process of a daemon: a ReplicaState, and a daemon's reaction to its actions, on a log of pushes. Owned
/// by one thread.
class ReplicaDaemon {
 public:
  /// The history that the log's records belong to.
  struct Origin {
    DaemonId primary;
    uint64_t term = 0;
    bool operator==(const Origin&) const = default;
  };

  ReplicaDaemon(ReplicaHost& host, size_t place, DaemonId id, const ReplicationRules& rules, ReplicaDisk disk,
                std::optional<Origin> origin);

  DaemonId id() const { return id_; }
  size_t place() const { return place_; }
  const ReplicaLog& log() const { return log_; }
  /// The content of its disk if it dies now.
  ReplicaDisk disk() const;
  const ReplicaState& state() const { return state_; }
  bool gatesClosed() const { return !gatesOpen_; }
  bool isStalled() const { return now() < pausedTill_; }
  /// Whether it has read the document, which it does first.
  bool started() const { return started_; }

  void begin();
  void pause(uint64_t ms);
  /// Kills the process; connections close, as far as the network reports that.
  void die();
  void push(const ReplicaPush& push);
  void handOver() {
    perform([&] { return state_.handOver(now()); });
  }
  void leave() {
    perform([&] { return state_.leave(now()); });
  }
  /// Ends the run, like `psd stop`, at its primary.
  void endRun();
  /// The document, as reported by a watch.
  void learn(const ClusterView& plan) {
    if (adoptMove(plan)) return;
    if (started_) perform([&] { return state_.documentRead(plan, now()); });
  }
  // --- A move of the model to other daemons ---

  const ServingState& serving() const { return serving_; }
  Status beginMove(uint64_t move);
  /// A trainer quiesces. False: it is refused.
  bool quiesce(size_t trainer, uint64_t move);
  /// Records the move; host_.moveOver() follows.
  Status commitMove(uint64_t move);
  void abandonMove(uint64_t move);

  void claim(const ClusterView& plan) {
    perform([&] { return state_.claim(plan, now()); });
  }
  /// Runs in the process: later if it is stalled, never if it has died.
  void run(const std::function<void()>& event);

 private:
  using Connection = std::shared_ptr<ReplicaConnection>;
  static constexpr uint64_t kEngineTimeoutMs = 60;

  TimePoint now() const { return host_.network().now(); }
  Random& random() { return host_.network().random(); }
  void after(uint64_t ms, std::function<void()> event);
  void wakeWhenDue();
  void tick();
  /// Passes an event to the rules, unless they are suspended, and executes the actions.
  template <class Event>
  void perform(Event event) {
    if (!suspended_) execute(event());
  }
  void execute(const ReplicaActions& actions);

  void act(const replica_action::Swap& swap);
  void act(const replica_action::Read&);
  void act(const replica_action::AnswerUpTo& answer) { answerUpTo(answer.number); }
  void act(const replica_action::NotifyInSync& tell) { tellPlan(tell.standby, tell.plan); }
  void act(const replica_action::NotifyTakeover& tell) { tellPlan(tell.standby, tell.plan); }
  void act(const replica_action::DropStandby& drop);
  void act(const replica_action::CloseGates&);
  void act(const replica_action::OpenGates&) { gatesOpen_ = true; }
  void act(const replica_action::Follow& follow);
  void act(const replica_action::CloseReplication&);
  void act(const replica_action::NotifyLeaving&);
  void act(const replica_action::Promote& promote);
  void act(const replica_action::TermRenewed& renewed) {
    term_ = renewed.term;
    serving_.serve(term_);
  }
  void act(const replica_action::RunOver&) { host_.ended(*this); }
  void act(const replica_action::StepDown& down) { host_.steppedDown(*this, down.handedOver); }
  void act(const replica_action::MayExit&) { host_.ended(*this); }

  /// Reports to the ServingState that this daemon does not serve.
  void withhold();
  /// If the document says that the model has moved, and this daemon does not serve: redirects.
  bool adoptMove(const ClusterView& plan);
  void closeForMove(uint64_t move);
  void recordMove(uint64_t move, uint64_t revision);
  void recorded(uint64_t move, bool counts);
  template <class Change>
  auto change(Change change) {
    return serving_.changeOutgoing(change);
  }

  void answerUpTo(uint64_t number);
  /// Becomes primary if its folder has the state of the document's primary, or of its standby, and that is
  /// dead.
  void claimOwnState();
  void tellPlan(DaemonId to, const ClusterView& plan);
  void swapTimedOut();

  // As the primary.
  void subscribed(const Connection& connection, DaemonId from, std::optional<Origin> origin, uint64_t held);
  void sendRecord(const Connection& connection, ReplicaDaemon* to, uint64_t number);
  void standbyHolds(const Connection& connection, DaemonId from, uint64_t number);
  void standbyGone(const Connection& connection, DaemonId from);
  void beat();
  void probe(DaemonId id);

  // As a follower.
  void dial();
  void connected(ReplicaDaemon& primary);
  bool isOf(const Connection& connection) const { return connection == following_; }
  void image(const Connection& connection, const Origin& origin, const ReplicaLog& log);
  void record(const Connection& connection, const Origin& origin, uint64_t number, const ReplicaPush& push);
  void beaten(const Connection& connection, const Origin& origin);
  void holds();

  ReplicaHost& host_;
  const size_t place_;
  const DaemonId id_;
  const ReplicationRules rules_;
  ReplicaState state_;
  ServingState serving_;
  bool suspended_ = false;     // a move is being recorded, or was: the rules are suspended
  std::set<size_t> quiesced_;  // trainers
  uint64_t records_ = 0;       // the newest request to record a move
  uint64_t markedMove_ = 0;    // in the folder
  ReplicaLog log_;
  const ReplicaDisk begunWith_;
  bool saved_ = false;      // its disk has its state
  uint64_t heldEpoch_ = 0;  // of the primary whose image is here
  TimePoint startedAt_{};
  TimePoint heardAt_{};
  std::optional<Origin> origin_;  // of log_, if it is whole and can continue
  bool started_ = false;
  bool alive_ = true;
  TimePoint pausedTill_{};
  std::deque<std::function<void()>> held_;  // what happened during a stall, in order
  uint64_t swaps_ = 0, reads_ = 0;          // the newest request's number; even: it was answered
  // The primary.
  uint64_t term_ = 0;
  uint64_t history_ = 0;  // the term in which it became primary
  bool gatesOpen_ = true;
  uint64_t answered_ = 0;
  std::map<uint64_t, ReplicaPush> unanswered_;  // by record
  std::map<DaemonId, Connection> followers_;
  // The follower.
  std::optional<DaemonId> target_;
  Connection following_;
  bool dialling_ = false;
};

}  // namespace psd::testing
