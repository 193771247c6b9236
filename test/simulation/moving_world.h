#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "test/simulation/replica_world.h"

namespace psd::testing {

/// The events of schedules; they add up.
struct MoveCounts {
  uint64_t begun = 0;      ///< moves
  uint64_t aborted = 0;    ///< at the source
  uint64_t committed = 0;  ///< at the target
  uint64_t asked = 0;      ///< outcomes that the source's lead, or the target, has told
  uint64_t commandDied = 0;
  uint64_t takeovers = 0;  ///< during a move
  uint64_t restarts = 0;   ///< of the target or the other source
};

/// A ReplicaWorld whose model moves, as the lead of two sources, to a target without a model, by an
/// operator's command that may die; trainers quiesce and follow the model. The other source and the target
/// are single daemons with a folder. Owned by one thread.
class MovingWorld final : public ReplicaWorld {
 public:
  MovingWorld(Random& random, Broken broken);

  std::string run() override;
  const MoveCounts& moves() const { return moves_; }

 private:
  /// A daemon in no replica set: its process, and its folder.
  struct Single {
    bool alive = true;
    uint64_t process = 0;  // number of the process: events of earlier ones are void
    std::unique_ptr<ServingState> serving = std::make_unique<ServingState>();
    uint64_t movedOnDisk = 0;
  };
  struct Target : Single {
    std::optional<ReplicaLog> model, onDisk, received;
    uint64_t arrivingOnDisk = 0;
    MoveLead leadOnDisk;
  };
  struct Follower {
    DaemonId quiescedAt;  // 0: it trains
    uint64_t move = 0;    // that it quiesced for
    bool atTarget = false;
  };
  /// The operator's command: one attempt to move the model.
  struct Command {
    bool alive = false;
    uint64_t move = 0;
    DaemonId lead;
    bool givesUp = false;  // it will not commit
  };

  void train(size_t trainer) override;
  bool whole() const override;
  std::string unfinished() const override;
  void answered(ReplicaDaemon& daemon, uint64_t term, const ReplicaPush& push) override;
  void moveOver(ReplicaDaemon& daemon) override;
  void checkInvariants() override;

  // Trainers.
  void trainAtSource(size_t trainer);
  void trainAtTarget(size_t trainer);
  void pushToTarget(size_t trainer);
  /// Asks the daemon at which it has quiesced whether the move is over.
  void askQuiesced(size_t trainer);
  void follow(size_t trainer, uint64_t move);

  // The command.
  void startMove();
  /// Runs `call` in the process at `place`, and `then` in the command; without an answer `then` is called
  /// with an Error (unavailable). The command may die before.
  void call(size_t place, std::function<Status()> call, std::function<void(const Status&)> then);
  void begin();
  void awaitQuiesced();
  void transfer();
  void commit();
  void finish(bool counts);
  void giveUp();
  /// The daemons notice that the command is gone.
  void dropCommand(uint64_t move);
  ReplicaDaemon* lead() { return living(command_.lead); }

  // The target.
  void place(uint64_t move, MoveLead lead);
  void forget();
  Status commitTarget(uint64_t move);
  void abandonTarget(uint64_t move);
  void askLead(uint64_t move, uint64_t process);
  // The other source.
  void settleOther(uint64_t move);
  void commitOther(uint64_t move);
  void writeOther(uint64_t move);
  void abandonOther(uint64_t move);
  void askAboutOther(uint64_t move, uint64_t process);

  void injectMoveFault();
  void restart(Single& single);
  void restartTarget();
  void restartOther();
  /// The outcome of a move as a daemon that may know it says.
  MoveOutcome outcomeAt(size_t place, uint64_t move, uint64_t leadProcess);
  template <class Change>
  auto arrive(Change change) {
    return target_.serving->changeIncoming(change);
  }
  template <class Change>
  auto moveOther(Change change) {
    return other_.serving->changeOutgoing(change);
  }
  /// Runs `event` later, unless that process has ended by then.
  void later(Single& single, uint64_t ms, std::function<void()> event);
  void checkTarget(const std::string& when);

  Target target_;
  Single other_;
  std::array<Follower, kReplicaTrainers> followers_;
  Command command_;
  uint64_t lastMove_ = 0;
  MoveCounts moves_;
};

}  // namespace psd::testing
