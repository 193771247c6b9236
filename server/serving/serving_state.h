#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/status/status.h"
#include "server/serving/incoming_move_state.h"
#include "server/serving/outgoing_move_state.h"
#include "server/serving/serving_view.h"

namespace psd {

/// Where a daemon stands.
enum class ServingPhase : uint8_t {
  starting,   ///< its replica set's cluster document is not known yet
  syncing,    ///< a replica that does not serve and cannot take over
  standby,    ///< a replica that takes over when the primary is dead
  serving,    ///< admits trainers
  quiescing,  ///< the model is about to move away: trainers are being quiesced, or are quiesced
  undecided,  ///< it is not known whether the model has moved away
  arriving,   ///< a model is arriving by a move, or is in place and not known to be committed
  moved,      ///< other daemons serve the model
  ended,      ///< it has stepped down, or has left its replica set
};

/// The one answer to the question whether, and in which term, this daemon serves. Everything that bears on it
/// reports here: the replica set's rules, the moves from and to this daemon, a change of the configuration,
/// and the end of the daemon.
///
/// Pure: no threads, locks or clocks. Only its ServingView is shared with other threads. Owned by the control
/// loop's thread.
class ServingState final {
 public:
  // --- Replica set. Without one the daemon serves from the start, in term 0. -----------------------------

  /// It serves in this term.
  void serve(uint64_t term);
  /// It does not serve, in a phase of `starting`, `syncing`, `standby` or `ended`; `why` is the answer to
  /// those who ask.
  void withhold(ServingPhase phase, Error why);
  /// Another daemon serves instead of this one from now on: trainers that disconnect continue there.
  void stepDown();

  // --- Moves -------------------------------------------------------------------------------------------

  const OutgoingMoveState& outgoing() const { return outgoing_; }
  const IncomingMoveState& incoming() const { return incoming_; }
  /// Changes the state of the move away; returns what `change(OutgoingMoveState&)` does.
  template <class Change>
  auto changeOutgoing(Change change) {
    return applied(change, outgoing_);
  }
  /// Changes the state of the move to here; returns what `change(IncomingMoveState&)` does.
  template <class Change>
  auto changeIncoming(Change change) {
    return applied(change, incoming_);
  }
  /// Whether a move away may begin, as far as this state knows.
  Status mayMove() const;
  /// Whether a move to here may begin, as far as this state knows.
  Status mayArrive() const;

  // --- Changes of the configuration ----------------------------------------------------------------------

  Status mayReconfigure() const;
  void reconfigure(bool underWay);

  // --- The end -------------------------------------------------------------------------------------------

  /// The daemon exits; `why` is the answer to those who ask. `restarting`: another daemon continues the run.
  /// A second call may change the latter to false.
  void stop(Error why, bool restarting);
  /// Only updates that have begun are accepted from now on.
  void drain() { view_.setUpdates(ServingView::Updates::inFlight); }
  /// No update is accepted from now on.
  void close() { view_.setUpdates(ServingView::Updates::none); }

  // --- Answers -------------------------------------------------------------------------------------------

  ServingPhase phase() const;
  /// The term in which it serves; 0: it does not serve, or belongs to no replica set.
  uint64_t term() const { return serves_ ? term_ : 0; }
  /// Who asks to be admitted.
  enum class Peer : uint8_t {
    reader,
    trainer,
    returningTrainer,  ///< resumes its session
  };
  /// Why the peer is rejected; nothing: it is admitted.
  std::optional<Error> rejection(Peer peer) const;
  bool admits(Peer peer = Peer::reader) const { return !rejection(peer); }
  /// Whether the model may be changed by what no trainer pushes: a round that closes by time.
  bool mayUpdate() const { return admits() && !outgoing_.frozen(); }
  /// Whether the model's newest state is here, and not, even possibly, at a primary or the target of a move.
  bool servesModel() const { return phase() == ServingPhase::serving || phase() == ServingPhase::quiescing; }
  /// Whether it is unknown whether the model has moved away: trainers stay quiesced.
  bool undecided() const { return phase() == ServingPhase::undecided; }
  /// Whether trainers that disconnect continue at another daemon.
  bool continuesElsewhere() const { return steppedDown_ || restarting_; }
  /// The rejection of a daemon whose model has moved; call it only then.
  Error movedError() const;
  /// The outcome of a move from or to this daemon, as far as it is known here. `here`: this process leads it.
  MoveOutcome outcome(uint64_t move, bool here) const;

  ServingView& view() { return view_; }
  /// A violated invariant; empty: none. Debug builds check it after every change.
  std::string checkInvariants() const;

 private:
  template <class Change, class State>
  auto applied(Change& change, State& state) {
    if constexpr (std::is_void_v<decltype(change(state))>) {
      change(state);
      changed();
    } else {
      auto result = change(state);
      changed();
      return result;
    }
  }
  void changed();

  bool serves_ = true;
  ServingPhase withheld_ = ServingPhase::serving;  // the phase while it does not serve
  std::optional<Error> why_;                       // set while it does not serve
  uint64_t term_ = 0;
  bool steppedDown_ = false, reconfigures_ = false, restarting_ = false;
  std::optional<Error> stopping_;
  OutgoingMoveState outgoing_;
  IncomingMoveState incoming_;
  ServingView view_;
};

}  // namespace psd
