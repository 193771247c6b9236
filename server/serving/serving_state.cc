#include "server/serving/serving_state.h"

#include <utility>

#include <fmt/format.h>

#include "common/types/invariant_check.h"

namespace psd {

void ServingState::changed() {
  const InvariantCheck check(*this);
  view_.setMoved(outgoing_.moved() ? outgoing_.move() : RecordedMove());
}

void ServingState::serve(uint64_t term) {
  serves_ = true;
  why_.reset();
  term_ = term;
  changed();
}

void ServingState::stepDown() {
  steppedDown_ = true;
  changed();
}

void ServingState::reconfigure(bool underWay) {
  reconfigures_ = underWay;
  changed();
}

void ServingState::withhold(ServingPhase phase, Error why) {
  serves_ = false;
  withheld_ = phase;
  why_ = std::move(why);
  changed();
}

void ServingState::stop(Error why, bool restarting) {
  stopping_ = std::move(why);
  restarting_ = restarting;
  changed();
}

Error ServingState::movedError() const {
  return {ErrorCode::standby, "the model has moved to " + addressesText(outgoing_.move().to)};
}

ServingPhase ServingState::phase() const {
  using Outgoing = OutgoingMoveState::Phase;
  if (outgoing_.moved()) return ServingPhase::moved;
  if (outgoing_.phase() == Outgoing::unknown || outgoing_.phase() == Outgoing::committing) {
    return ServingPhase::undecided;
  }
  if (!serves_) return withheld_;
  if (incoming_.underWay()) return ServingPhase::arriving;
  return outgoing_.underWay() ? ServingPhase::quiescing : ServingPhase::serving;
}

std::optional<Error> ServingState::rejection(Peer peer) const {
  if (stopping_) return stopping_;
  if (outgoing_.moved()) return movedError();
  if (!serves_) return why_;
  if (outgoing_.phase() == OutgoingMoveState::Phase::unknown) {
    return Error{ErrorCode::unavailable, "it is unknown whether the model has moved to other daemons"};
  }
  if (incoming_.underWay()) {
    return Error{
        ErrorCode::unavailable,
        "the model is being moved here from other daemons, and the move is not known to be committed"};
  }
  const bool resumes =
      peer == Peer::returningTrainer && outgoing_.phase() == OutgoingMoveState::Phase::quiescing;
  if (peer == Peer::reader || resumes || !outgoing_.underWay()) return {};
  return Error{ErrorCode::unavailable, "the model is about to move to other daemons; try again"};
}

Status ServingState::mayMove() const {
  if (outgoing_.moved()) return movedError();
  if (stopping_) return *stopping_;
  if (outgoing_.phase() != OutgoingMoveState::Phase::none) {
    return {ErrorCode::notReady, "another move of the model is in progress"};
  }
  if (reconfigures_) return {ErrorCode::notReady, "a reload is in progress; try again"};
  if (const auto why = rejection(Peer::reader)) return *why;
  return {};
}

Status ServingState::mayArrive() const {
  if (!serves_) return *why_;
  if (stopping_) return *stopping_;
  if (reconfigures_) return {ErrorCode::notReady, "a reload is in progress; try again"};
  return {};
}

Status ServingState::mayReconfigure() const {
  if (stopping_) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  if (reconfigures_) return {ErrorCode::notReady, "another reload is under way"};
  const char* const direction = outgoing_.underWay() ? "to" : "from";
  if (outgoing_.underWay() || incoming_.receives()) {
    return {ErrorCode::notReady,
            fmt::format("a move of the model {} other daemons is under way; try again", direction)};
  }
  return {};
}

MoveOutcome ServingState::outcome(uint64_t move, bool here) const {
  const MoveOutcome away = outgoing_.outcome(move, here);
  return away == MoveOutcome::unknown ? incoming_.outcome(move) : away;
}

std::string ServingState::checkInvariants() const {
  if (std::string found = outgoing_.checkInvariants(); !found.empty()) return found;
  if (std::string found = incoming_.checkInvariants(); !found.empty()) return found;
  if (serves_ == why_.has_value()) return "it serves, and has a reason not to; or neither";
  if (!serves_ && withheld_ >= ServingPhase::serving && withheld_ != ServingPhase::ended) {
    return "it does not serve, and its phase is one of a daemon that does";
  }
  if (incoming_.receives() && outgoing_.underWay()) return "a model arrives while one moves away";
  if (restarting_ && !stopping_) return "it restarts without stopping";
  return "";
}

}  // namespace psd
