#include "server/replica/replica_state.h"

#include <utility>

#include "common/types/invariant_check.h"

namespace psd {

ReplicaState::ReplicaState(DaemonId me, ReplicationRules rules, TimePoint now)
    : me_(me), rules_(rules), state_(std::in_place_type<StandbyState>, me, rules, now) {}

template <class Call>
ReplicaActions ReplicaState::asPrimary(Call call) {
  const InvariantCheck check(*this);
  ReplicaActions out;
  auto* primary = std::get_if<PrimaryState>(&state_);
  if (primary != nullptr && !primary->over()) call(*primary, out);
  return out;
}

template <class Call>
ReplicaActions ReplicaState::asFollower(TimePoint now, Call call) {
  const InvariantCheck check(*this);
  ReplicaActions out;
  auto* standby = std::get_if<StandbyState>(&state_);
  if (standby == nullptr || standby->over()) return out;
  call(*standby, out);
  if (standby->promoted()) {
    becomePrimary(now, out);
  } else {
    number_ = standby->number();
  }
  return out;
}

template <class Call>
ReplicaActions ReplicaState::asAny(TimePoint now, Call call) {
  return primary() != nullptr ? asPrimary(call) : asFollower(now, call);
}

void ReplicaState::becomePrimary(TimePoint now, ReplicaActions& out) {
  StandbyState standby = std::get<StandbyState>(state_);
  number_ = standby.number();
  auto& primary = state_.emplace<PrimaryState>(me_, rules_, standby.talk(), number_, now);
  if (standby.leaving()) primary.leave(now, out);
}

ReplicaActions ReplicaState::start(const ClusterView& view, uint64_t number, TimePoint now,
                                   SavedFolder folder) {
  return asFollower(now, [&](StandbyState& state, ReplicaActions& out) {
    state.start(view, number, std::move(folder), now, out);
  });
}

ReplicaActions ReplicaState::tick(TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.tick(now, out); });
}

ReplicaActions ReplicaState::documentRead(const ClusterView& view, TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.documentRead(view, now, out); });
}

ReplicaActions ReplicaState::readUnknown(TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.readUnknown(now, out); });
}

ReplicaActions ReplicaState::swapWon(const ClusterView& view, TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.swapAnswered(view, now, out); });
}

ReplicaActions ReplicaState::swapRefused(const ClusterView& view, TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.swapAnswered(view, now, out); });
}

ReplicaActions ReplicaState::swapUnknown(TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.swapUnknown(out); });
}

ReplicaActions ReplicaState::peerDead(DaemonId id, TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.peerDead(id, now, out); });
}

ReplicaActions ReplicaState::leave(TimePoint now) {
  return asAny(now, [&](auto& state, ReplicaActions& out) { state.leave(now, out); });
}

ReplicaActions ReplicaState::recordAppended(uint64_t number, TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions& out) { state.recordAppended(number, now, out); });
}

ReplicaActions ReplicaState::standbySubscribed(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions& out) { state.standbySubscribed(id, now, out); });
}

ReplicaActions ReplicaState::standbyHolds(DaemonId id, uint64_t number, TimePoint now) {
  return asPrimary(
      [&](PrimaryState& state, ReplicaActions& out) { state.standbyHolds(id, number, now, out); });
}

ReplicaActions ReplicaState::standbyHeard(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions&) { state.standbyHeard(id, now); });
}

ReplicaActions ReplicaState::standbyConnectionGone(DaemonId id, TimePoint now) {
  return asPrimary(
      [&](PrimaryState& state, ReplicaActions& out) { state.standbyConnectionGone(id, now, out); });
}

ReplicaActions ReplicaState::standbyLeaves(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions& out) { state.standbyLeaves(id, now, out); });
}

ReplicaActions ReplicaState::handOver(TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions& out) { state.handOver(now, out); });
}

ReplicaActions ReplicaState::gatesClosed(TimePoint now) {
  return asPrimary([&](PrimaryState& state, ReplicaActions& out) { state.gatesClosed(now, out); });
}

ReplicaActions ReplicaState::endRun() {
  return asPrimary([](PrimaryState& state, ReplicaActions&) { state.endRun(); });
}

ReplicaActions ReplicaState::primaryHeard(TimePoint now) {
  return asFollower(now, [&](StandbyState& state, ReplicaActions&) { state.primaryHeard(now); });
}

ReplicaActions ReplicaState::recordsHeld(uint64_t number, TimePoint now) {
  return asFollower(now, [&](StandbyState& state, ReplicaActions&) { state.recordsHeld(number, now); });
}

ReplicaActions ReplicaState::primaryConnectionGone(TimePoint now) {
  return asFollower(now,
                    [&](StandbyState& state, ReplicaActions& out) { state.primaryConnectionGone(now, out); });
}

bool ReplicaState::takes(DaemonId primary, uint64_t term) const {
  const auto* standby = std::get_if<StandbyState>(&state_);
  return standby != nullptr && standby->takes(primary, term);
}

ReplicaActions ReplicaState::claim(const ClusterView& view, TimePoint now) {
  return asFollower(now, [&](StandbyState& state, ReplicaActions& out) { state.claim(view, now, out); });
}

ReplicaRole ReplicaState::role() const {
  if (const auto* primary = this->primary())
    return primary->over() ? ReplicaRole::ended : ReplicaRole::primary;
  const auto& standby = std::get<StandbyState>(state_);
  if (standby.over()) return ReplicaRole::ended;
  return standby.inSync() ? ReplicaRole::standby : ReplicaRole::syncing;
}

bool ReplicaState::contradicts() const {
  const auto* standby = std::get_if<StandbyState>(&state_);
  return standby != nullptr && role() == ReplicaRole::syncing && !plan().vacant() &&
         !continuesFolder(plan(), standby->folder());
}

const ClusterView& ReplicaState::plan() const {
  return std::visit([](const auto& state) -> const ClusterView& { return state.plan(); }, state_);
}

std::string ReplicaState::checkInvariants() const {
  const auto* standby = std::get_if<StandbyState>(&state_);
  if (standby == nullptr) return primary()->checkInvariants();
  if (standby->promoted()) return "it is promoted, and does not act as primary";
  if (number_ != standby->number()) return "the last record held is another one than the standby's";
  return standby->checkInvariants();
}

std::string_view describe(ReplicaRole role) {
  switch (role) {
    case ReplicaRole::syncing: return "syncing";
    case ReplicaRole::standby: return "standby";
    case ReplicaRole::primary: return "primary";
    case ReplicaRole::ended: return "ended";
  }
  return "ended";
}

}  // namespace psd
