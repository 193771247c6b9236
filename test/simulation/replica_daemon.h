#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "server/replica/group_state.h"
#include "test/simulation/replica_engine.h"
#include "test/simulation/replica_log.h"

namespace psd::testing {

/// What a daemon of the simulation does wrong, so that the simulation can show that it would notice.
enum class Broken {
  nothing,
  addThenWait,       ///< answers alone until the plan names the standby
  answerThenRemove,  ///< answers alone as soon as it means to remove the standby
  noCas,             ///< promotes itself whatever the plan says
  noAnswerIsNo,      ///< takes a swap without an answer for a refused one
  sameName,          ///< goes on under its number after it died
  keepsState,        ///< steps down and keeps what it has
  beginsAtOnce,      ///< makes a plan where there is none without waiting for who served
  anyFolderBegins,   ///< begins the next run, or a first one, with whatever its folder has
};

/// What a process leaves on its disk. A value type.
struct ReplicaDisk {
  ReplicaLog log;
  std::optional<FolderRecord> record;
};

/// Where a daemon keeps what it has.
enum class Saving {
  log,    ///< of any daemon, all that it has when it dies
  group,  ///< as durability.type log: of a primary, once its first checkpoint is whole
  both,   ///< so, and of a standby from its image on: replication.wait is standby_and_disk
  none,   ///< nothing
};

class ReplicaDaemon;

/// Where the processes of daemons live.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  virtual ReplicaNetwork& network() = 0;
  virtual ReplicaEngine& engine() = 0;
  virtual Broken broken() const = 0;
  virtual Saving saving() const = 0;
  virtual bool finished() const = 0;
  /// The process of that number, if it lives.
  virtual ReplicaDaemon* living(DaemonId id) = 0;
  virtual size_t placeOf(DaemonId id) const = 0;
  virtual void answered(ReplicaDaemon& daemon, uint64_t epoch, const ReplicaPush& push) = 0;
  virtual void steppedDown(ReplicaDaemon& daemon, bool handedOver) = 0;
  virtual void ended(ReplicaDaemon& daemon) = 0;
};

/// A process of a daemon: a GroupState, and around it what a daemon does with its actions, on a log of
/// pushes. Owned by one thread.
class ReplicaDaemon {
 public:
  /// Whose records the log consists of.
  struct Origin {
    DaemonId primary;
    uint64_t epoch = 0;
    bool operator==(const Origin&) const = default;
  };

  ReplicaDaemon(ReplicaHost& host, size_t place, DaemonId id, const GroupRules& rules, ReplicaDisk disk,
                std::optional<Origin> origin);

  DaemonId id() const { return id_; }
  size_t place() const { return place_; }
  const ReplicaLog& log() const { return log_; }
  /// What it leaves on its disk if it dies now.
  ReplicaDisk disk() const;
  const GroupState& state() const { return state_; }
  bool gatesClosed() const { return !gatesOpen_; }
  bool standsStill() const { return now() < pausedTill_; }
  /// Whether it has read the plan, which is the first thing that it does.
  bool started() const { return started_; }

  void begin();
  void pause(uint64_t ms);
  /// The process is no more; connections close, where the network lets anybody know.
  void die();
  void push(const ReplicaPush& push);
  void handOver() { perform(state_.handOver(now())); }
  void leave() { perform(state_.leave(now())); }
  /// The run is to end, as by `psd stop`, at its primary.
  void endRun();
  /// The plan, as a watch tells it.
  void learn(const PlanView& plan) {
    if (started_) perform(state_.planRead(plan, now()));
  }
  void claim(const PlanView& plan) { perform(state_.claim(plan, now())); }
  /// Runs in the process: later where that stands still, never where it has died.
  void run(const std::function<void()>& event);

 private:
  using Connection = std::shared_ptr<ReplicaConnection>;
  static constexpr uint64_t kEngineTimeoutMs = 60;

  TimePoint now() const { return host_.network().now(); }
  Random& random() { return host_.network().random(); }
  void after(uint64_t ms, std::function<void()> event);
  void wakeWhenDue();
  void tick();
  void perform(const GroupActions& actions);

  void act(const group_action::Swap& swap);
  void act(const group_action::Read&);
  void act(const group_action::AnswerUpTo& answer) { answerUpTo(answer.number); }
  void act(const group_action::TellInSync& tell) { tellPlan(tell.standby, tell.plan); }
  void act(const group_action::TellTakeOver& tell) { tellPlan(tell.standby, tell.plan); }
  void act(const group_action::DropStandby& drop);
  void act(const group_action::CloseGates&);
  void act(const group_action::OpenGates&) { gatesOpen_ = true; }
  void act(const group_action::Follow& follow);
  void act(const group_action::CloseReplication&);
  void act(const group_action::TellLeaving&);
  void act(const group_action::Promote& promote);
  void act(const group_action::Renewed& renewed) { epoch_ = renewed.epoch; }
  void act(const group_action::RunOver&) { host_.ended(*this); }
  void act(const group_action::StepDown& down) { host_.steppedDown(*this, down.handedOver); }
  void act(const group_action::Ended&) { host_.ended(*this); }

  void answerUpTo(uint64_t number);
  /// Becomes primary where its folder has the state of the plan's, or of its standby, and that is dead.
  void claimWhatIsOurs();
  void tellPlan(DaemonId to, const PlanView& plan);
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
  const GroupRules rules_;
  GroupState state_;
  ReplicaLog log_;
  const ReplicaDisk begunWith_;
  bool saved_ = false;      // its disk has what it has
  uint64_t heldEpoch_ = 0;  // of the primary whose image is here
  TimePoint startedAt_{};
  TimePoint heardAt_{};
  std::optional<Origin> origin_;  // of log_, where it is whole and goes on
  bool started_ = false;
  bool alive_ = true;
  TimePoint pausedTill_{};
  std::deque<std::function<void()>> held_;  // what happened while it stood still, in order
  uint64_t swaps_ = 0, reads_ = 0;          // the newest request's number; even: it was answered
  // The primary.
  uint64_t epoch_ = 0;
  uint64_t history_ = 0;  // the epoch that it became primary in
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
