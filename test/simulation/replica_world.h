#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test/simulation/replica_daemon.h"

namespace psd::testing {

/// The events of schedules; they add up.
struct ReplicaCounts {
  uint64_t answered = 0;  ///< pushes
  uint64_t swaps = 0;     ///< of the replica set's part of the document
  uint64_t added = 0;     ///< standbys
  uint64_t removed = 0;
  uint64_t failovers = 0;  ///< by a standby
  uint64_t handovers = 0;  ///< switchovers
  uint64_t claims = 0;     ///< by decision, after primary and standby had died
  uint64_t steppedDown = 0;
  uint64_t renewed = 0;       ///< lost documents, rewritten by the serving daemon
  uint64_t ends = 0;          ///< of runs
  uint64_t begun = 0;         ///< runs after one that had ended, started by a daemon automatically
  uint64_t decided = 0;       ///< the same, by an operator
  uint64_t guessed = 0;       ///< documents written from a folder's record
  uint64_t contradicted = 0;  ///< daemons that did not follow, as the run started without their state
  uint64_t given = 0;         ///< pushes that an operator abandoned: no folder had them
};

/// Two or three daemons of one replica set, an engine, and trainers that push, over a network; crashes,
/// starts, stalls, cuts, losses, orderly ends and switchovers; and the invariants, checked after every swap
/// and every answer. Owned by one thread.
class ReplicaWorld : protected ReplicaHost {
 public:
  /// `saving`: with any other value than `log`, runs end, documents are lost and all daemons die at once,
  /// too.
  ReplicaWorld(Random& random, Broken broken, ReplicationRules::Wait wait, Saving saving = Saving::log);

  /// Runs faults for a while, then none, until every push is answered and the replica set is redundant.
  /// Returns an empty text, or the violation.
  virtual std::string run();
  const ReplicaCounts& counts() const { return counts_; }

 protected:
  struct Place {
    ReplicaDaemon* daemon = nullptr;  // that runs there
    ReplicaDisk disk;                 // what the last process left
    DaemonId lastId;
  };
  struct Trainer {
    uint64_t step = 0;
    bool open = false;  // not answered
  };

  ReplicaNetwork& network() override { return network_; }
  ReplicaEngine& engine() override { return engine_; }
  Broken broken() const override { return broken_; }
  Saving saving() const override { return saving_; }
  bool finished() const override { return finished_ || !violation_.empty(); }
  ReplicaDaemon* living(DaemonId id) override;
  size_t placeOf(DaemonId id) const override { return placesOfIds_.at(id); }
  void answered(ReplicaDaemon& daemon, uint64_t term, const ReplicaPush& push) override;
  void steppedDown(ReplicaDaemon& daemon, bool handedOver) override;
  void ended(ReplicaDaemon& daemon) override { die(daemon.place()); }
  template <class State>
  void checkInvariants(const State& state) {
    if (const std::string found = state.checkInvariants(); !found.empty()) violated(found);
  }
  /// Of all states; called after each event.
  virtual void checkInvariants();

  void start(size_t place, ReplicaDisk disk, std::optional<ReplicaDaemon::Origin> origin);
  void restart(size_t place);
  void die(size_t place);
  void injectFault();
  void cutSomething(uint64_t kind);
  void crash(size_t place);
  void onPrimary(void (ReplicaDaemon::*call)());
  void recoverIfDead();
  void endSomething(uint64_t kind);
  /// An operator lets the daemon with the most pushes serve, if daemons wait.
  void decide();
  void loseUnheld(const ReplicaLog& log);
  void loseDocument();
  void notifyAll(uint64_t times);
  void heal();
  void settle();
  virtual void train(size_t trainer);
  void written(const ClusterView& before);
  void check(const std::string& when);
  void checkHolds(DaemonId id, const std::string& when);
  void violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  virtual bool whole() const;
  /// What more is unfinished, for the violation; empty: nothing.
  virtual std::string unfinished() const { return ""; }

  Random& random_;
  const Broken broken_;
  const Saving saving_;
  ReplicationRules rules_;
  VirtualTime time_;
  ReplicaNetwork network_;
  ReplicaEngine engine_;
  std::vector<std::unique_ptr<ReplicaDaemon>> daemons_;  // all that ever existed
  std::map<DaemonId, size_t> placesOfIds_;
  std::vector<Place> places_;
  std::array<Trainer, kReplicaTrainers> trainers_;
  std::array<uint64_t, kReplicaTrainers> answered_{};  // the last step of each
  std::map<uint64_t, DaemonId> primaryOfTerm_;         // by term
  uint64_t lastId_ = 0;
  uint64_t losses_ = 0;              // of the document
  TimePoint lostAt_{};               // the last one
  std::optional<DaemonId> decided_;  // by an operator
  uint64_t rollbacks_ = 0;           // number of times that trainers had to continue from an older state
  bool mishaps_ = true;
  bool finished_ = false;
  std::string violation_;
  ReplicaCounts counts_;
};

}  // namespace psd::testing
