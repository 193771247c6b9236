#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/serving/move_record.h"

namespace psd {

/// The source side of a move. Until the move is recorded, any failure makes the trainers resume here; after
/// it they never do.
///
/// Pure: no threads, locks or clocks. Part of a ServingState, which owns it.
class OutgoingMoveState {
 public:
  enum class Phase : uint8_t {
    none,
    quiescing,   ///< trainers are being quiesced
    settling,    ///< all trainers are quiesced; updates in flight finish
    quiesced,    ///< the model does not change
    committing,  ///< the record of the move is being written, and may count already
    unknown,     ///< the record can neither be written nor removed; final, the daemon exits
    moved,       ///< other daemons serve the model; final
  };
  /// The result of writing the record.
  enum class Written : uint8_t { yes, no, unknown };

  /// Starts to quiesce. `lead`: the process that decides; 0: this one, or one that is not known. Requires
  /// Phase::none.
  void begin(RecordedMove move, uint64_t lead);
  /// All trainers are quiesced.
  void settle();
  /// No update is in flight any more.
  Status quiesce(uint64_t move);
  /// Starts to write the record.
  Status commit(uint64_t move);
  /// The record was written, or not. `no`: trainers are quiesced as before, and abandon() follows.
  void written(Written result);
  /// Aborts. False if there is nothing to abort: the move is over, or being committed.
  bool abandon(uint64_t move);
  /// The cluster document, or the folder, has the record of a move.
  void adopt(RecordedMove move);

  /// The move that was aborted here although its lead may still commit it, to be asked for; 0: none.
  uint64_t asks() const { return asked_.move; }
  uint64_t lead() const { return lead_; }
  /// The lead's answer for the move `asked`.
  enum class Next : uint8_t {
    done,    ///< the answer settles it, or another move is asked for
    again,   ///< ask again later
    commit,  ///< the move is committed: commit() was called, write the record
  };
  Next answered(uint64_t asked, MoveOutcome outcome);

  Phase phase() const { return phase_; }
  /// Whether a move has begun and is not over.
  bool underWay() const { return phase_ >= Phase::quiescing && phase_ <= Phase::committing; }
  bool moved() const { return phase_ == Phase::moved; }
  /// Whether nothing may change, since the targets have, or receive, the model.
  bool frozen() const { return frozen_; }
  /// The move that is under way, moved or unknown; else empty.
  const RecordedMove& move() const { return move_; }
  /// The outcome as far as this process knows it. `here`: it is the move's lead.
  MoveOutcome outcome(uint64_t move, bool here) const;
  /// Why a move cannot continue in this phase.
  Status checkStill(uint64_t move) const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  /// Whether it may still be aborted.
  bool mayAbort() const { return phase_ >= Phase::quiescing && phase_ <= Phase::quiesced; }

  Phase phase_ = Phase::none;
  RecordedMove move_, asked_;
  uint64_t lead_ = 0;
  bool frozen_ = false;
};

}  // namespace psd
