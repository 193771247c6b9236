// ReplicaDaemon: a move of its model to other daemons.

#include "test/simulation/replica_daemon.h"

namespace psd::testing {

void ReplicaDaemon::withhold() {
  const Error why{ErrorCode::standby, "it does not serve"};
  const ReplicaRole role = state_.role();
  const ServingPhase phase = role == ReplicaRole::ended     ? ServingPhase::ended
                             : role == ReplicaRole::standby ? ServingPhase::standby
                                                            : ServingPhase::syncing;
  serving_.withhold(started_ ? phase : ServingPhase::starting, why);
  if (role == ReplicaRole::ended) serving_.stepDown();
}

bool ReplicaDaemon::adoptMove(const ClusterView& plan) {
  const uint64_t move = host_.engine().movedBy(plan);
  if (serving_.outgoing().moved()) return true;
  if (move == 0 || serving_.term() > 0) return false;
  suspended_ = true;
  markedMove_ = move;
  serving_.changeOutgoing([move](auto& state) { state.adopt({move, {{"target"}}}); });
  return true;
}

Status ReplicaDaemon::beginMove(uint64_t move) {
  PSD_RETURN_IF_ERROR(serving_.mayMove());
  quiesced_.clear();
  return change([move](auto& state) {
    state.begin({move, {{"target"}}}, 0);
    return Status();
  });
}

bool ReplicaDaemon::quiesce(size_t trainer, uint64_t move) {
  const OutgoingMoveState& state = serving_.outgoing();
  if (state.phase() != OutgoingMoveState::Phase::quiescing || state.move().move != move) return false;
  quiesced_.insert(trainer);
  if (quiesced_.size() < kReplicaTrainers) return true;
  change([](auto& moving) {
    moving.settle();
    return true;
  });
  closeForMove(move);
  return true;
}

void ReplicaDaemon::closeForMove(uint64_t move) {
  gatesOpen_ = false;
  after(random().between(0, 20), [this, move] {
    // Pushes in flight wait for the standby.
    if (serving_.outgoing().move().move != move) return;
    if (!unanswered_.empty() && answered_ < log_.size()) return closeForMove(move);
    static_cast<void>(change([move](auto& state) { return state.quiesce(move); }));
  });
}

Status ReplicaDaemon::commitMove(uint64_t move) {
  PSD_RETURN_IF_ERROR(change([move](auto& state) { return state.commit(move); }));
  recordMove(move, 0);
  return {};
}

void ReplicaDaemon::recordMove(uint64_t move, uint64_t revision) {
  const PrimaryState* const primary = state_.primary();
  if (state_.role() != ReplicaRole::primary || serving_.term() == 0) return recorded(move, false);
  if (!suspended_) {
    // A swap in flight may still win.
    if (primary->asks()) return after(10, [this, move] { recordMove(move, 0); });
    suspended_ = true;
  }
  const uint64_t expected = revision != 0 ? revision : state_.plan().revision;
  const uint64_t mine = ++records_;
  host_.engine().moveAway(place_, expected, id_, move, [this, mine, move](const ClusterView& plan) {
    run([this, mine, move, plan] {
      if (records_ != mine) return;
      records_++;
      const bool counts = host_.engine().movedBy(plan) == move;
      if (!counts && plan.primary == id_) return recordMove(move, plan.revision);  // another part has changed
      recorded(move, counts);
    });
  });
  after(kEngineTimeoutMs + 100, [this, mine, move, expected] {
    if (records_ != mine) return;
    if (host_.broken() == Broken::noAnswerIsNoMove) return recorded(move, false);
    recordMove(move, expected);
  });
}

void ReplicaDaemon::recorded(uint64_t move, bool counts) {
  suspended_ = counts;
  if (!counts) {
    change([](auto& state) {
      state.written(OutgoingMoveState::Written::no);
      return true;
    });
    abandonMove(move);
    if (started_) act(replica_action::Read{});
    return;
  }
  after(random().between(0, 20), [this, move] {
    markedMove_ = move;
    change([](auto& state) {
      state.written(OutgoingMoveState::Written::yes);
      return true;
    });
    host_.moveOver(*this);
    after(random().between(1, 100), [this] { host_.ended(*this); });
  });
}

void ReplicaDaemon::abandonMove(uint64_t move) {
  if (!change([move](auto& state) { return state.abandon(move); })) return;
  gatesOpen_ = true;
  quiesced_.clear();
  host_.moveOver(*this);
}

}  // namespace psd::testing
