#include "server/serving/incoming_move_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

/// Whether both are the same daemon, perhaps restarted, or the same replica set. A lead that starts a move
/// has not moved away, so no earlier move from it will be committed.
bool sameLead(const MoveLead& one, const MoveLead& other) {
  if (one.daemon == 0 || one.daemon == other.daemon) return true;  // 0: the earlier lead is unknown
  return std::ranges::find_first_of(one.addresses, other.addresses) != one.addresses.end();
}

Error notFromThisMove() { return {ErrorCode::notReady, "the model here is not from this move"}; }

}  // namespace

void IncomingMoveState::found(uint64_t move, MoveLead lead) {
  placed_ = move;
  lead_ = std::move(lead);
  unread_ = true;
}

Status IncomingMoveState::begin(uint64_t move, bool occupied) {
  if (work_ == Work::forgetting) {
    return {ErrorCode::notReady, "the remains of a previous move are being removed; try again"};
  }
  if (receiving_ != 0 || work_ != Work::none) {
    return {ErrorCode::notReady, "another move to this daemon is in progress"};
  }
  if (placed_ == 0 && occupied) {
    return {ErrorCode::invalidArgument, "this daemon has a model already; a move needs targets without one"};
  }
  receiving_ = move;
  if (gone_ == move) gone_ = 0;  // it is repeated
  accepted_ = false;
  return {};
}

Status IncomingMoveState::propose(uint64_t move, MoveLead lead) {
  PSD_RETURN_IF_ERROR(checkReceiving(move));
  accepted_ = false;
  if (placed_ != 0 && !sameLead(lead_, lead)) {
    return {ErrorCode::notReady,
            fmt::format("the model here arrived by a move from the daemons whose lead is {}, and may be "
                        "committed: they decide; or discard it by starting this daemon over an empty folder",
                        joined(lead_.addresses, ", "))};
  }
  nextLead_ = std::move(lead);
  return {};
}

Status IncomingMoveState::place(uint64_t move) {
  PSD_RETURN_IF_ERROR(checkReceiving(move));
  if (work_ != Work::none) return {ErrorCode::notReady, "not all parts of the model have arrived"};
  if (!accepted_) {
    return {ErrorCode::notReady, "the model was not checked for compatibility with this daemon"};
  }
  work_ = Work::placing;
  unasked_ = false;
  lead_ = nextLead_;
  return {};
}

bool IncomingMoveState::placed() {
  work_ = Work::none;
  placed_ = std::exchange(receiving_, 0);
  return std::exchange(unasked_, false);
}

void IncomingMoveState::fail() {
  placed_ = std::exchange(receiving_, 0);
  unasked_ = false;
  forget();
}

void IncomingMoveState::forget() {
  work_ = Work::forgetting;
  gone_ = placed_;
}

void IncomingMoveState::forgotten(bool removed) {
  work_ = Work::none;
  if (!removed) return;
  placed_ = 0;
  unread_ = false;
}

Result<IncomingMoveState::GiveUp> IncomingMoveState::giveUp(uint64_t move) {
  if (move == 0 || (move == gone_ && move != placed_)) return GiveUp::nothing;
  if (move == receiving_) {
    if (work_ != Work::none) return Error{ErrorCode::notReady, "the model is being put in place"};
    drop();
    return GiveUp::drop;
  }
  if (move != placed_ || receiving_ != 0 || work_ != Work::none) return notFromThisMove();
  return GiveUp::forget;
}

IncomingMoveState::Abandon IncomingMoveState::abandon(uint64_t move) {
  if (move == 0) return Abandon::nothing;
  if (move == placed_) return Abandon::ask;
  if (move != receiving_) return Abandon::nothing;
  if (work_ == Work::placing) unasked_ = true;
  if (work_ != Work::none) return Abandon::nothing;
  drop();
  return Abandon::drop;
}

void IncomingMoveState::drop() {
  receiving_ = 0;
  accepted_ = false;
}

Status IncomingMoveState::mayCommit(uint64_t move) const {
  const bool may = move != 0 && move == placed_ && move != gone_ && work_ == Work::none;
  return may ? Status() : notFromThisMove();
}

void IncomingMoveState::commit() { work_ = Work::committing; }

void IncomingMoveState::committed(bool done) {
  work_ = Work::none;
  if (!done) return;
  drop();  // another move that was in progress
  committed_ = std::exchange(placed_, 0);
  unread_ = false;
}

IncomingMoveState::Next IncomingMoveState::answered(uint64_t asked, MoveOutcome outcome) const {
  if (asked == 0 || asked != placed_) return Next::done;
  // Another move is arriving meanwhile: its sender has asked the lead, too.
  if (receiving_ != 0 || work_ != Work::none) return Next::again;
  if (outcome == MoveOutcome::committed) return mayCommit(asked).ok() ? Next::commit : Next::again;
  return outcome == MoveOutcome::stays ? Next::forget : Next::again;
}

Status IncomingMoveState::checkReceiving(uint64_t move) const {
  if (move == receiving_ && move != 0) return {};
  return {ErrorCode::notReady, "this move is not in progress here"};
}

MoveOutcome IncomingMoveState::outcome(uint64_t move) const {
  if (move == 0) return MoveOutcome::unknown;
  if (move == committed_) return MoveOutcome::committed;
  return move == receiving_ || move == placed_ ? MoveOutcome::underWay : MoveOutcome::unknown;
}

std::string IncomingMoveState::checkInvariants() const {
  if (work_ == Work::placing && receiving_ == 0) return "a model is put in place without a move";
  if ((work_ == Work::forgetting || work_ == Work::committing) && placed_ == 0) {
    return "no model is in place, and one is removed or committed";
  }
  if (work_ == Work::forgetting && gone_ != placed_) return "another move than the one in place is removed";
  if (unread_ && placed_ == 0) return "a model in the folder alone, without a move";
  if (unasked_ && work_ != Work::placing) return "the command is gone from a move that is not being placed";
  if (placed_ != 0 && placed_ == committed_) return "a committed move is not known to be committed";
  return "";
}

}  // namespace psd
