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
#include "server/move/command_heartbeats.h"
#include "server/move/move_mark.h"
#include "server/move/move_outcome.h"
#include "server/move/move_terms.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"

namespace psd {

/// The trainers of the source daemons. A value type.
struct MovedTrainers {
  Departed departed;     ///< ranks that have departed
  std::set<Rank> ranks;  ///< ranks that are about to join here
};

/// Callbacks into the rest of the daemon for an incoming move. Called on the control loop, except `ask`.
struct IncomingMoveCallbacks {
  std::function<bool()> reloading;               ///< a configuration reload is in progress
  std::function<std::optional<Error>()> closed;  ///< why this daemon does not serve, apart from moves
  std::function<Status()> prepare;               ///< resumes from the folder, as at a start; blocks
  /// Asks the source's lead for the outcome of a move; an Error if it is unreachable. On any thread; blocks.
  std::function<Result<MoveOutcome>(const MoveLead& lead, uint64_t move)> ask;
};

/// The target side of a move: receives the sources' parts, builds this daemon's partition from them, and
/// commits it. Until the commit, joins are rejected. A partition that has been built is kept if the
/// operator's command dies, since the sources may consider the move committed: their lead is asked. It is
/// discarded if the lead or the command says that the move will never be committed, or if another move of
/// that lead replaces it.
///
/// Owned by the control loop's thread, on which every method is called.
class IncomingMove final {
 public:
  /// All references outlive it.
  IncomingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               IncomingMoveCallbacks help, kj::Timer& timer)
      : coordinator_(coordinator),
        host_(host),
        env_(env),
        config_(config),
        help_(std::move(help)),
        timer_(timer),
        beats_(timer) {}

  /// Checks whether the folder's state belongs to a move that is not known to be committed; if so, the state
  /// is not used until that is known. Blocks; call at the start.
  Status look();
  /// Whether look() has found such a move.
  bool waits() const { return unread_; }
  /// Why joins are rejected; nothing if there is no uncommitted move.
  std::optional<Error> rejectionReason() const;
  /// Whether parts are being received or put in place.
  bool underWay() const { return receiving_ != 0; }

  /// Starts a move from `parts` source daemons. See Admin.arrive in the schema.
  Status begin(uint64_t move, uint32_t parts, bool beats = false);
  /// A heartbeat of the operator's command.
  void onHeartbeat(uint64_t move);
  /// The outcome of a move to this daemon, as far as known here.
  MoveOutcome outcome(uint64_t move) const;
  /// The addresses of the source's lead, if a committed move brought the model; else empty.
  std::vector<std::string> cameFrom() const;
  /// Checks whether the model is compatible with this daemon; settle() requires it.
  Status check(uint64_t move, const MoveTerms& terms, const ModelSpec& whole);
  /// Receives a chunk of one source's part, and the end of that part.
  Status image(uint64_t move, uint32_t part, const ImagePart& piece);
  Status imageDone(uint64_t move, uint32_t part, const std::string& path);
  /// Builds this daemon's partition and, with durability, saves it. Resolves with its number of rows.
  kj::Promise<Result<uint64_t>> settle(uint64_t move, MovedTrainers trainers);
  /// Commits the move: trainers may join. No effect if it is committed already.
  kj::Promise<Status> commit(uint64_t move);
  /// The operator's command knows that the move will never be committed: discards it.
  kj::Promise<Status> giveUp(uint64_t move);
  /// The operator's command is gone: discards a move not yet in place; else asks the lead for the outcome.
  void abandon(uint64_t move);
  /// Bytes of received parts.
  uint64_t held() const;

 private:
  /// The exclusive operation in progress on a partition.
  enum class Work : uint8_t {
    none,
    placing,         ///< it is built from the parts and saved
    placingUnasked,  ///< likewise, and the operator's command is gone
    forgetting,      ///< it is being removed
  };
  kj::Promise<Status> installModel(uint64_t move, ParameterHost::Arrived arrived);
  Result<uint64_t> placed(uint64_t move);
  /// Removes a partition that failed to be put in place, also from disk; joins are rejected until then.
  kj::Promise<Result<uint64_t>> undo(Error why);
  /// Removes the partition that is in place.
  kj::Promise<Status> forget(uint64_t move);
  /// Removes from the folder what the move has written.
  kj::Promise<Status> clean();
  /// Polls the lead until the outcome of the move is known.
  void startPolling();
  kj::Promise<void> pollOutcome(uint64_t move, kj::Duration pause);
  kj::Promise<bool> handleOutcome(uint64_t move, const Result<MoveOutcome>& outcome);
  void open(uint64_t move);
  Status checkUnderWay(uint64_t move) const;
  Status checkRanks(const MovedTrainers& trainers) const;

  Coordinator& coordinator_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  const IncomingMoveCallbacks help_;
  kj::Timer& timer_;
  uint64_t receiving_ = 0;  // the move whose parts are being received
  uint64_t placed_ = 0,
           committed_ = 0;  // the move whose partition is in place and uncommitted; committed
  uint64_t gone_ = 0;       // the newest move that was discarded after its partition was in place
  bool checked_ = false;    // check() has succeeded for receiving_
  Work work_ = Work::none;
  CommandHeartbeats beats_;   // of receiving_
  bool unread_ = false;       // the placed partition exists in the folder only
  MoveLead lead_, nextLead_;  // of placed_ or the one being placed; of receiving_
  uint32_t worldSize_ = 0;    // of the trainers of receiving_
  std::shared_ptr<MemoryFiles> files_;
  std::weak_ptr<MemoryFiles> held_;        // files_, also while a partition is built from them
  std::vector<std::string> paths_;         // by part; empty: not received
  std::optional<MovedTrainers> trainers_;  // nothing: the coordinator has them from the folder
  kj::Maybe<kj::ForkedPromise<Status>> committing_;
  kj::Promise<void> forgetting_ = kj::READY_NOW;  // resets committing_ when it is done
  uint64_t asks_ = 0;                             // the move that asking_ polls
  kj::Promise<void> asking_ = kj::READY_NOW;
  Background background_;
};

}  // namespace psd
