#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/serving/move_record.h"

namespace psd {

/// The target side of a move: a model is received, put in place, and committed. A model in place is kept
/// until its source's lead, or the operator's command, says whether the move is committed, or another move of
/// that lead replaces it. Until then no trainer is admitted.
///
/// Pure: no threads, locks or clocks. Part of a ServingState, which owns it.
class IncomingMoveState {
 public:
  /// The exclusive operation in progress on the model in place.
  enum class Work : uint8_t {
    none,
    placing,     ///< it is built from the parts that were received, and saved
    forgetting,  ///< it is being removed
    committing,  ///< its record is being removed from the folder, which commits it
  };

  /// The folder's model arrived by a move that is not known to be committed.
  void found(uint64_t move, MoveLead lead);
  /// Starts to receive. `occupied`: the daemon has a model, or trainers, other than from a move.
  Status begin(uint64_t move, bool occupied);
  /// The move's lead proposes terms; an Error if the model in place is another lead's.
  Status propose(uint64_t move, MoveLead lead);
  /// The proposed terms fit this daemon.
  void accept() { accepted_ = true; }
  /// All parts are here: starts to put the model in place.
  Status place(uint64_t move);
  /// The model is in place. Whether its lead must be asked, since the command is gone.
  bool placed();
  /// The model in place is in memory, no longer in the folder only.
  void read() { unread_ = false; }
  /// The model could not be put in place: starts to remove it.
  void fail();
  /// The command knows that the move will never count. `drop`: it is no longer received, drop its parts;
  /// `forget`: remove the model in place.
  enum class GiveUp : uint8_t { nothing, drop, forget };
  Result<GiveUp> giveUp(uint64_t move);
  /// The command is gone. `drop`: as above; `ask`: the lead.
  enum class Abandon : uint8_t { nothing, drop, ask };
  Abandon abandon(uint64_t move);
  /// Starts to remove the model in place.
  void forget();
  /// The model is removed, or not.
  void forgotten(bool removed);
  Status mayCommit(uint64_t move) const;
  /// Starts to commit; requires mayCommit().
  void commit();
  /// The move is committed, or not.
  void committed(bool done);
  /// What to do after the lead's answer for the model in place of the move `asked`.
  enum class Next : uint8_t { done, again, commit, forget };
  Next answered(uint64_t asked, MoveOutcome outcome) const;

  Status checkReceiving(uint64_t move) const;
  /// Whether parts are being received or put in place.
  bool receives() const { return receiving_ != 0; }
  /// Whether a model is arriving, or is in place without being known to count.
  bool underWay() const { return receiving_ != 0 || placed_ != 0; }
  uint64_t receiving() const { return receiving_; }
  uint64_t inPlace() const { return placed_; }
  /// Whether the model in place exists in the folder only.
  bool unread() const { return unread_; }
  Work work() const { return work_; }
  /// The lead of the model in place, or of the committed one.
  const MoveLead& lead() const { return lead_; }
  bool arrived() const { return committed_ != 0; }
  /// The committed move; 0: none.
  uint64_t committedMove() const { return committed_; }
  MoveOutcome outcome(uint64_t move) const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  void drop();

  uint64_t receiving_ = 0;  // the move whose parts are being received or put in place
  uint64_t placed_ = 0;     // the move whose model is in place
  uint64_t committed_ = 0;
  uint64_t gone_ = 0;      // the newest move that was removed after it was in place
  bool accepted_ = false;  // accept() has succeeded for receiving_
  bool unasked_ = false;   // while placing: the command is gone
  bool unread_ = false;
  Work work_ = Work::none;
  MoveLead lead_, nextLead_;  // of placed_, or the one being placed; of receiving_
};

}  // namespace psd
