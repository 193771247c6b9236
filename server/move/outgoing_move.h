#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/env.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/loop/moved_away.h"
#include "server/move/incoming_move.h"
#include "server/move/move_beats.h"
#include "server/move/move_outcome.h"
#include "server/move/move_terms.h"
#include "server/replica/image_stream.h"

namespace psd {

/// What the rest of the daemon does for a move. On the control loop.
struct MoveGates {
  /// No gradient begins; resolves when those that have begun are done, false: not in time.
  std::function<kj::Promise<bool>()> close;
  std::function<void()> open;
  std::function<bool()> reloading;                      ///< a change of the configuration is under way
  std::function<std::vector<std::string>()> addresses;  ///< where others reach this daemon
  /// Of a daemon with an engine: lets the move count, by the plan, or not (false, or an Error); resolves when
  /// that is certain.
  std::function<kj::Promise<Result<bool>>(const MoveMark& mark)> decide;
  /// What those who take part in a move say of it; an Error where they are out of reach. On any thread;
  /// blocks.
  std::function<Result<MoveOutcome>(const MoveLead& lead, uint64_t move)> ask = nullptr;
};

/// What the operator's command says of itself, and of the others, when a move begins. A value type.
struct MoveBegun {
  uint64_t lead = 0;   ///< the process of the lead; 0: it was not told
  bool beats = false;  ///< it calls heard() all the time
};

/// What there is to tell once all trainers are aside. A value type.
struct QuietModel {
  MovedTrainers trainers;
  MoveTerms terms;
};

/// How the model of this daemon goes to others: trainers step aside, what is here is given, and the move
/// counts. Until then trainers go on here whatever happens, and from then on never again: the daemon ends,
/// and one that is started over its folder tells where the model is.
///
/// Owned by the control loop's thread, on which every method is called.
class OutgoingMove final {
 public:
  /// Elements of this daemon's layout.
  struct Range {
    uint64_t begin = 0, count = 0;
  };

  /// The others outlive it.
  OutgoingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               MovedAway& away, MoveGates gates, kj::Timer& timer)
      : coordinator_(coordinator),
        host_(host),
        env_(env),
        config_(config),
        away_(away),
        gates_(std::move(gates)),
        timer_(timer),
        beats_(timer) {}

  /// Looks whether the model has moved from here. Blocks; at the start.
  Status look();
  /// The model has moved, as the plan says; so does the folder from then on. Blocks: nobody is served here.
  void adopt(MoveMark mark);
  /// Whether it has.
  bool moved() const { return away_.get().move != 0; }
  /// Resolves when it has; with nowhere where the daemon ends before.
  kj::Promise<MovedAway::Place> whenMoved();
  /// The daemon ends: who waits for a move is told.
  void endWaits() { tellWaiting({}); }
  /// Why nobody is let in, where it has.
  std::optional<Error> turnedAway() const;
  /// Why no model can come here any more, where it has, and what lets one.
  Error refusal() const;

  /// What the daemons to which the model would move must suit; an Error where it cannot move.
  Result<MoveTerms> terms() const;
  /// What became of a move of the process `daemon`.
  MoveOutcome outcome(uint64_t move, uint64_t daemon) const;
  /// See Admin.beginMove in the schema.
  Status begin(uint64_t move, DaemonPlaces to, std::chrono::milliseconds most, MoveBegun begun = {});
  /// The operator's command is there.
  void heard(uint64_t move);
  /// Resolves when all trainers are aside, and nothing changes any more.
  kj::Promise<Result<QuietModel>> whenQuiet(uint64_t move);
  /// Writes a checkpoint of what the range needs, and of all rows; gives its path.
  kj::Promise<Result<std::string>> give(uint64_t move, const Range& range, std::shared_ptr<ImageStream> to);
  /// The others have all: the move counts from now on. The daemon ends.
  kj::Promise<Status> commit(uint64_t move);
  /// Trainers go on here; nothing where the move counts, or is about to. It may count all the same where this
  /// daemon is not the lead, which is asked then.
  void abandon(uint64_t move, const std::string& why);
  /// Trainers are asked to step aside, or have.
  bool underWay() const { return mark_.move != 0; }
  /// Nothing may change, as all trainers are aside.
  bool still() const { return still_; }

 private:
  /// What came of writing the mark by which the move counts.
  enum class Mark : uint8_t { written, notThere, unknown };
  struct Writing {
    Mark mark = Mark::notThere;
    Status status;
  };
  Writing writeMark(const MoveMark& mark) const;
  /// writeMark() of a daemon with an engine, whose plan says that the move counts, whatever comes of this.
  kj::Promise<void> markFolder(const MoveMark& mark);
  static void noteUnmarked(const Status& written);
  kj::Promise<Status> decide();
  Status decided(uint64_t move, const Writing& writing);
  Status checkStill(uint64_t move) const;
  Status mayBegin() const;
  MoveTerms ownTerms() const;
  void openGates();
  void leave();
  /// Has away_ tell where the model is, and whoever waits for that.
  void setAway(const MovedAway::Place& place);
  void tellWaiting(const MovedAway::Place& place);
  /// Asks those who take part what became of a move, again and again, until that is known.
  void beginAsking(MoveMark mark);
  kj::Promise<void> keepAsking(MoveMark mark, MoveLead of, kj::Duration pause);
  kj::Promise<bool> hear(const MoveMark& mark, const Result<MoveOutcome>& outcome);
  /// What lets a daemon serve a model here again, for people.
  std::string remedy() const;

  Coordinator& coordinator_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  MovedAway& away_;
  const MoveGates gates_;
  kj::Timer& timer_;
  MoveMark mark_;           // of the move that is under way
  uint64_t undecided_ = 0;  // a move of which not even this daemon knows whether it counts
  bool still_ = false, committing_ = false, closed_ = false;
  kj::Promise<void> deadline_ = nullptr;
  MoveBeats beats_;
  uint64_t lead_ = 0;  // its process, of the move that is under way; 0: this daemon, or one that is not known
  uint64_t asked_ = 0;  // the move that asking_ is of
  kj::Promise<void> asking_ = kj::READY_NOW;
  std::vector<kj::Own<kj::PromiseFulfiller<MovedAway::Place>>> waiting_;  // of whenMoved()
  Background background_;
};

}  // namespace psd
