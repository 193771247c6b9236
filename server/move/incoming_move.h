#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/env.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/move/move_beats.h"
#include "server/move/move_mark.h"
#include "server/move/move_outcome.h"
#include "server/move/move_terms.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"

namespace psd {

/// Who was in at the daemons that had the model before. A value type.
struct MovedTrainers {
  Departed departed;     ///< those that have come and gone
  std::set<Rank> ranks;  ///< of those that are about to come
};

/// What the rest of the daemon does for a move to here. On the control loop, but `ask`.
struct ArrivalHelp {
  std::function<bool()> reloading;               ///< a change of the configuration is under way
  std::function<std::optional<Error>()> closed;  ///< why this daemon serves nobody, moves aside
  std::function<Status()> prepare;  ///< goes on from what the folder holds, as at a start; blocks
  /// What the lead of before says of a move; an Error where it is out of reach. On any thread; blocks.
  std::function<Result<MoveOutcome>(const MoveLead& lead, uint64_t move)> ask;
};

/// How a model comes to this daemon from others: their parts, the partition made of them, and that it counts.
/// In between nobody is let in. What was made stays though the operator's command is gone, since the daemons
/// of before may know that the move is done: their lead is asked. It is forgotten where that one says that
/// the move never will count, or the command, or where another move of that lead brings a partition.
///
/// Owned by the control loop's thread, on which every method is called.
class IncomingMove final {
 public:
  /// The others outlive it.
  IncomingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               ArrivalHelp help, kj::Timer& timer)
      : coordinator_(coordinator),
        host_(host),
        env_(env),
        config_(config),
        help_(std::move(help)),
        timer_(timer),
        beats_(timer) {}

  /// Looks whether what the folder holds is of a move that is not known to be done: then it is left alone
  /// until that is known. Blocks; at the start.
  Status look();
  /// look() has found such a move.
  bool waits() const { return unread_; }
  /// Why nobody is let in; nothing where there is no such move.
  std::optional<Error> turnedAway() const;
  /// Parts come, or are put in place.
  bool underWay() const { return receiving_ != 0; }

  /// A move begins, from so many daemons. See Admin.arrive in the schema.
  Status begin(uint64_t move, uint32_t parts, bool beats = false);
  /// The operator's command is there.
  void heard(uint64_t move);
  /// What is known here of a move to here.
  MoveOutcome outcome(uint64_t move) const;
  /// Of a model that has come here, and counts, where the lead of before was reached; empty: there is none.
  std::vector<std::string> cameFrom() const;
  /// Whether the model could go on here; settle() is refused without.
  Status check(uint64_t move, const MoveTerms& terms, const ModelSpec& whole);
  /// A piece of what one of them has, and that all of it is here.
  Status image(uint64_t move, uint32_t part, const ImagePart& piece);
  Status imageDone(uint64_t move, uint32_t part, const std::string& path);
  /// Puts this daemon's partition in place, and on the disk, where it is to be. Gives how many rows it has.
  kj::Promise<Result<uint64_t>> settle(uint64_t move, MovedTrainers trainers);
  /// The move is done: trainers may come. Nothing where it is known.
  kj::Promise<Status> commit(uint64_t move);
  /// The move never will count, as the operator's command knows.
  kj::Promise<Status> giveUp(uint64_t move);
  /// The operator's command is gone: what is not in place is forgotten, and of what is, the lead is asked.
  void abandon(uint64_t move);
  /// Bytes of parts that are here.
  uint64_t held() const;

 private:
  /// What is being done with a partition, meanwhile nothing else is.
  enum class Work : uint8_t {
    none,
    placing,         ///< it is made of the parts, and put on the disk
    placingUnasked,  ///< so, and the operator's command is gone
    forgetting,      ///< nothing is to stay of it
  };
  kj::Promise<Status> takeIn(uint64_t move, ParameterHost::Arrived arrived);
  Result<uint64_t> placed(uint64_t move);
  /// Of what was to be put in place nothing stays, neither here nor on the disk; nobody is let in before.
  kj::Promise<Result<uint64_t>> undo(Error why);
  /// Of what is in place nothing stays.
  kj::Promise<Status> forget(uint64_t move);
  /// Nothing that the move brought stays in the folder.
  kj::Promise<Status> clean();
  /// Asks the lead, again and again, until it is known what became of the move.
  void beginAsking();
  kj::Promise<void> keepAsking(uint64_t move, kj::Duration pause);
  kj::Promise<bool> hear(uint64_t move, const Result<MoveOutcome>& outcome);
  void open(uint64_t move);
  Status checkUnderWay(uint64_t move) const;
  Status checkRanks(const MovedTrainers& trainers) const;

  Coordinator& coordinator_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  const ArrivalHelp help_;
  kj::Timer& timer_;
  uint64_t receiving_ = 0;  // the move of which parts come
  uint64_t placed_ = 0,
           committed_ = 0;  // the move whose partition is here, and which may not count; which does
  uint64_t gone_ = 0;       // the newest move that was forgotten after its partition was here
  bool checked_ = false;    // of the move of which parts come: whether the model could go on here
  Work work_ = Work::none;
  MoveBeats beats_;           // of the move of which parts come
  bool unread_ = false;       // what is placed lies in the folder alone
  MoveLead lead_, nextLead_;  // of the move that is placed, or put in place; of the one of which parts come
  uint32_t worldSize_ = 0;    // of the trainers of the latter
  std::shared_ptr<MemoryFiles> files_;
  std::weak_ptr<MemoryFiles> held_;        // files_, also while a partition is made of them
  std::vector<std::string> paths_;         // by part; empty: it is not here
  std::optional<MovedTrainers> trainers_;  // nothing: the coordinator knows what the folder tells
  kj::Maybe<kj::ForkedPromise<Status>> committing_;
  kj::Promise<void> forgetting_ = kj::READY_NOW;  // committing_, once it is through
  uint64_t asks_ = 0;                             // the move that asking_ is of
  kj::Promise<void> asking_ = kj::READY_NOW;
  Background background_;
};

}  // namespace psd
