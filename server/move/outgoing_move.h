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
#include "server/move/command_heartbeats.h"
#include "server/move/incoming_move.h"
#include "server/move/move_outcome.h"
#include "server/move/move_terms.h"
#include "server/replica/image_stream.h"

namespace psd {

/// Callbacks into the rest of the daemon for an outgoing move. Called on the control loop.
struct OutgoingMoveCallbacks {
  /// Accepts no more gradients; resolves with true when those in flight are done, with false on timeout.
  std::function<kj::Promise<bool>()> close;
  std::function<void()> open;
  std::function<bool()> reloading;                      ///< a configuration reload is in progress
  std::function<std::vector<std::string>()> addresses;  ///< where other daemons reach this one
  /// With an engine: commits the move in the cluster document, or not (false, or an Error); resolves when the
  /// outcome is certain.
  std::function<kj::Promise<Result<bool>>(const MoveMark& mark)> decide;
  /// Asks the daemons that take part in a move for its outcome; an Error if they are unreachable. On any
  /// thread; blocks.
  std::function<Result<MoveOutcome>(const MoveLead& lead, uint64_t move)> ask = nullptr;
};

/// What the operator's command announces when it starts a move. A value type.
struct MoveStart {
  uint64_t lead = 0;   ///< the lead's process; 0: not given
  bool beats = false;  ///< it sends heartbeats
};

/// What is known once all trainers are quiesced. A value type.
struct QuiescedModel {
  MovedTrainers trainers;
  MoveTerms terms;
};

/// The source side of a move: quiesces the trainers, sends this daemon's part, and commits. Before the
/// commit, any failure makes the trainers resume here; after it they never do: the daemon exits, and one that
/// is started over its folder redirects to the targets.
///
/// Owned by the control loop's thread, on which every method is called.
class OutgoingMove final {
 public:
  /// A range of elements of this daemon's layout.
  struct Range {
    uint64_t begin = 0, count = 0;
  };

  /// All references outlive it.
  OutgoingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               MovedAway& away, OutgoingMoveCallbacks gates, kj::Timer& timer)
      : coordinator_(coordinator),
        host_(host),
        env_(env),
        config_(config),
        away_(away),
        gates_(std::move(gates)),
        timer_(timer),
        beats_(timer) {}

  /// Reads from the folder whether the model has moved away. Blocks; call at the start.
  Status look();
  /// The cluster document says that the model has moved: records it in the folder too. Blocks.
  void adopt(MoveMark mark);
  /// Whether the model has moved away.
  bool moved() const { return away_.get().move != 0; }
  /// Resolves when the model has moved away; with an empty Place if the daemon exits before.
  kj::Promise<MovedAway::Place> whenMoved();
  /// The daemon exits: resolves all calls of whenMoved().
  void endWaits() { resolveWaiters({}); }
  /// Why joins are rejected, if the model has moved away.
  std::optional<Error> rejectionReason() const;
  /// Why no model can move here after one has moved away, and the remedy.
  Error refusal() const;

  /// The requirements on the targets; an Error if the model cannot move.
  Result<MoveTerms> terms() const;
  /// The outcome of a move that was led by the process `daemon`.
  MoveOutcome outcome(uint64_t move, uint64_t daemon) const;
  /// See Admin.startMove in the schema.
  Status begin(uint64_t move, DaemonAddresses to, std::chrono::milliseconds most, MoveStart begun = {});
  /// A heartbeat of the operator's command.
  void onHeartbeat(uint64_t move);
  /// Resolves when all trainers are quiesced and the model no longer changes.
  kj::Promise<Result<QuiescedModel>> whenQuiesced(uint64_t move);
  /// Writes a checkpoint of the shards that the range needs, and of all rows; resolves with its path.
  kj::Promise<Result<std::string>> give(uint64_t move, const Range& range, std::shared_ptr<ImageStream> to);
  /// The targets have everything: commits the move. The daemon exits.
  kj::Promise<Status> commit(uint64_t move);
  /// Aborts: trainers resume here. No effect if the move is committed, or about to be. If this daemon is not
  /// the lead, the move may still be committed; the lead is polled.
  void abandon(uint64_t move, const std::string& why);
  /// Whether trainers are being quiesced, or are quiesced.
  bool underWay() const { return mark_.move != 0; }
  /// Whether all trainers are quiesced, so that nothing may change.
  bool still() const { return quiesced_; }

 private:
  /// Result of writing the mark that commits the move.
  enum class Mark : uint8_t { written, absent, unknown };
  struct Writing {
    Mark mark = Mark::absent;
    Status status;
  };
  Writing writeMark(const MoveMark& mark) const;
  /// writeMark() with an engine: the cluster document already commits the move, whatever the result here.
  kj::Promise<void> markFolder(const MoveMark& mark);
  static void logUnmarked(const Status& written);
  kj::Promise<Status> decide();
  Status decided(uint64_t move, const Writing& writing);
  Status checkStill(uint64_t move) const;
  Status mayBegin() const;
  MoveTerms ownTerms() const;
  void openGates();
  void leave();
  /// Sets the model's new place in away_ and resolves whenMoved().
  void setAway(const MovedAway::Place& place);
  void resolveWaiters(const MovedAway::Place& place);
  /// Polls the daemons that take part until the outcome of the move is known.
  void startPolling(MoveMark mark);
  kj::Promise<void> pollOutcome(MoveMark mark, MoveLead of, kj::Duration pause);
  kj::Promise<bool> handleOutcome(const MoveMark& mark, const Result<MoveOutcome>& outcome);
  /// How an operator makes this daemon serve a model again, human-readable.
  std::string remedy() const;

  Coordinator& coordinator_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  MovedAway& away_;
  const OutgoingMoveCallbacks gates_;
  kj::Timer& timer_;
  MoveMark mark_;           // of the move in progress
  uint64_t undecided_ = 0;  // a move of which even this daemon does not know the outcome
  bool quiesced_ = false, committing_ = false, closed_ = false;
  kj::Promise<void> deadline_ = nullptr;
  CommandHeartbeats beats_;
  uint64_t lead_ = 0;   // the lead's process of the move in progress; 0: this daemon, or unknown
  uint64_t asked_ = 0;  // the move that asking_ polls
  kj::Promise<void> asking_ = kj::READY_NOW;
  std::vector<kj::Own<kj::PromiseFulfiller<MovedAway::Place>>> waiting_;  // calls of whenMoved()
  Background background_;
};

}  // namespace psd
