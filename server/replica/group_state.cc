#include "server/replica/group_state.h"

#include <utility>

namespace psd {

GroupState::GroupState(DaemonId me, GroupRules rules, TimePoint now)
    : me_(me), rules_(rules), state_(std::in_place_type<StandbyState>, me, rules, now) {}

template <class Call>
GroupActions GroupState::asPrimary(Call call) {
  GroupActions out;
  auto* primary = std::get_if<PrimaryState>(&state_);
  if (primary != nullptr && !primary->over()) call(*primary, out);
  return out;
}

template <class Call>
GroupActions GroupState::asFollower(TimePoint now, Call call) {
  GroupActions out;
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
GroupActions GroupState::asAny(TimePoint now, Call call) {
  return primary() != nullptr ? asPrimary(call) : asFollower(now, call);
}

void GroupState::becomePrimary(TimePoint now, GroupActions& out) {
  StandbyState standby = std::get<StandbyState>(state_);
  number_ = standby.number();
  auto& primary = state_.emplace<PrimaryState>(me_, rules_, standby.talk(), number_, now);
  if (standby.leaving()) primary.leave(now, out);
}

GroupActions GroupState::start(const PlanView& view, uint64_t number, TimePoint now, SavedFolder folder) {
  return asFollower(now, [&](StandbyState& state, GroupActions& out) {
    state.start(view, number, std::move(folder), now, out);
  });
}

GroupActions GroupState::tick(TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.tick(now, out); });
}

GroupActions GroupState::planRead(const PlanView& view, TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.planRead(view, now, out); });
}

GroupActions GroupState::readUnknown(TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.readUnknown(now, out); });
}

GroupActions GroupState::swapWon(const PlanView& view, TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.swapAnswered(view, now, out); });
}

GroupActions GroupState::swapRefused(const PlanView& view, TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.swapAnswered(view, now, out); });
}

GroupActions GroupState::swapUnknown(TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.swapUnknown(out); });
}

GroupActions GroupState::peerRefuses(DaemonId id, TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.peerRefuses(id, now, out); });
}

GroupActions GroupState::leave(TimePoint now) {
  return asAny(now, [&](auto& state, GroupActions& out) { state.leave(now, out); });
}

GroupActions GroupState::recordAppended(uint64_t number, TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.recordAppended(number, now, out); });
}

GroupActions GroupState::standbySubscribed(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.standbySubscribed(id, now, out); });
}

GroupActions GroupState::standbyHolds(DaemonId id, uint64_t number, TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.standbyHolds(id, number, now, out); });
}

GroupActions GroupState::standbyHeard(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions&) { state.standbyHeard(id, now); });
}

GroupActions GroupState::standbyConnectionGone(DaemonId id, TimePoint now) {
  return asPrimary(
      [&](PrimaryState& state, GroupActions& out) { state.standbyConnectionGone(id, now, out); });
}

GroupActions GroupState::standbyLeaves(DaemonId id, TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.standbyLeaves(id, now, out); });
}

GroupActions GroupState::handOver(TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.handOver(now, out); });
}

GroupActions GroupState::gatesClosed(TimePoint now) {
  return asPrimary([&](PrimaryState& state, GroupActions& out) { state.gatesClosed(now, out); });
}

GroupActions GroupState::endRun() {
  return asPrimary([](PrimaryState& state, GroupActions&) { state.endRun(); });
}

GroupActions GroupState::primaryHeard(TimePoint now) {
  return asFollower(now, [&](StandbyState& state, GroupActions&) { state.primaryHeard(now); });
}

GroupActions GroupState::recordsHeld(uint64_t number, TimePoint now) {
  return asFollower(now, [&](StandbyState& state, GroupActions&) { state.recordsHeld(number, now); });
}

GroupActions GroupState::primaryConnectionGone(TimePoint now) {
  return asFollower(now,
                    [&](StandbyState& state, GroupActions& out) { state.primaryConnectionGone(now, out); });
}

bool GroupState::takes(DaemonId primary, uint64_t epoch) const {
  const auto* standby = std::get_if<StandbyState>(&state_);
  return standby != nullptr && standby->takes(primary, epoch);
}

GroupActions GroupState::claim(const PlanView& view, TimePoint now) {
  return asFollower(now, [&](StandbyState& state, GroupActions& out) { state.claim(view, now, out); });
}

GroupRole GroupState::role() const {
  if (const auto* primary = this->primary()) return primary->over() ? GroupRole::over : GroupRole::primary;
  const auto& standby = std::get<StandbyState>(state_);
  if (standby.over()) return GroupRole::over;
  return standby.inSync() ? GroupRole::standby : GroupRole::newcomer;
}

bool GroupState::contradicts() const {
  const auto* standby = std::get_if<StandbyState>(&state_);
  return standby != nullptr && role() == GroupRole::newcomer && !plan().vacant() &&
         !leadsOn(plan(), standby->folder());
}

const PlanView& GroupState::plan() const {
  return std::visit([](const auto& state) -> const PlanView& { return state.plan(); }, state_);
}

std::string_view describe(GroupRole role) {
  switch (role) {
    case GroupRole::newcomer: return "newcomer";
    case GroupRole::standby: return "standby";
    case GroupRole::primary: return "primary";
    case GroupRole::over: return "over";
  }
  return "over";
}

}  // namespace psd
