#include "server/serving/outgoing_move_state.h"

#include <utility>

namespace psd {

void OutgoingMoveState::begin(RecordedMove move, uint64_t lead) {
  phase_ = Phase::quiescing;
  move_ = std::move(move);
  lead_ = lead;
  frozen_ = false;
}

void OutgoingMoveState::settle() {
  if (phase_ == Phase::quiescing) phase_ = Phase::settling;
}

Status OutgoingMoveState::quiesce(uint64_t move) {
  if (move == 0 || move != move_.move || phase_ != Phase::settling) {
    return {ErrorCode::notReady, "the move was aborted"};
  }
  phase_ = Phase::quiesced;
  frozen_ = true;
  return {};
}

Status OutgoingMoveState::checkStill(uint64_t move) const {
  if (move != 0 && move == move_.move && frozen_) return {};
  return {ErrorCode::notReady, "the move was aborted, or its trainers are not quiesced yet"};
}

Status OutgoingMoveState::commit(uint64_t move) {
  PSD_RETURN_IF_ERROR(checkStill(move));
  if (phase_ == Phase::committing) return {ErrorCode::notReady, "the move is being committed already"};
  if (phase_ != Phase::quiesced) return {ErrorCode::notReady, "the move is over"};
  phase_ = Phase::committing;
  return {};
}

void OutgoingMoveState::written(Written result) {
  if (phase_ != Phase::committing) return;
  switch (result) {
    case Written::yes:
      phase_ = Phase::moved;
      frozen_ = false;
      asked_ = {};
      return;
    case Written::no:
      // A commit by the lead's answer, for which no trainer is quiesced: the lead is asked again.
      phase_ = frozen_ ? Phase::quiesced : Phase::none;
      if (!frozen_) move_ = {};
      return;
    case Written::unknown: phase_ = Phase::unknown; return;
  }
}

bool OutgoingMoveState::abandon(uint64_t move) {
  if (move == 0 || move != move_.move || !mayAbort()) return false;
  phase_ = Phase::none;
  const bool mayCount = std::exchange(frozen_, false) && lead_ != 0;
  RecordedMove gone = std::exchange(move_, {});
  if (mayCount) asked_ = std::move(gone);
  return true;
}

void OutgoingMoveState::adopt(RecordedMove move) {
  phase_ = Phase::moved;
  move_ = std::move(move);
  asked_ = {};
  frozen_ = false;
}

OutgoingMoveState::Next OutgoingMoveState::answered(uint64_t asked, MoveOutcome outcome) {
  if (asked == 0 || asked != asked_.move) return Next::done;
  // A later move that has started here proves nothing: the lead is the last to receive it.
  if (phase_ != Phase::none) return Next::again;
  if (outcome == MoveOutcome::stays) {
    asked_ = {};
    return Next::done;
  }
  if (outcome != MoveOutcome::committed) return Next::again;
  phase_ = Phase::committing;
  move_ = asked_;
  return Next::commit;
}

MoveOutcome OutgoingMoveState::outcome(uint64_t move, bool here) const {
  if (move == 0) return MoveOutcome::unknown;
  if (moved() && move_.move == move) return MoveOutcome::committed;
  if (!here) return MoveOutcome::unknown;
  return move_.move == move ? MoveOutcome::underWay : MoveOutcome::stays;
}

std::string OutgoingMoveState::checkInvariants() const {
  if ((phase_ == Phase::none) != (move_.move == 0)) return "a phase of a move without a move, or the reverse";
  if (phase_ == Phase::quiesced && !frozen_) return "quiesced, and the model may change";
  if (frozen_ && !underWay() && phase_ != Phase::unknown) return "the model may not change, without a move";
  if (moved() && asked_.move != 0) return "moved, and another move may count";
  return "";
}

}  // namespace psd
