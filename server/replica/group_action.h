#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "server/replica/plan_view.h"

namespace psd {

/// What a GroupState wants done, in this order. Value types.
namespace group_action {

/// Put `wanted` (its revision means nothing) into the plan if that still has the revision `expectedRevision`;
/// 0: if there is no plan. Exactly one of swapWon(), swapRefused(), swapUnknown() answers. Until then no
/// second one is wanted.
struct Swap {
  uint64_t expectedRevision;
  PlanView wanted;
};
/// planRead() or readUnknown() answers. The read has to be linearizable.
struct Read {};
/// Pushes whose records are numbered up to here wait for no other daemon any more.
struct AnswerUpTo {
  uint64_t number;
};
/// Tell the standby that the plan names it.
struct TellInSync {
  DaemonId standby;
  PlanView plan;
};
/// Tell the standby that the plan names it as primary: all that it holds is all there is.
struct TellTakeOver {
  DaemonId standby;
  PlanView plan;
};
/// Close the replication connection to this daemon; it may come again.
struct DropStandby {
  DaemonId standby;
};
/// Take no new pushes, let what has begun end, then call gatesClosed().
struct CloseGates {};
/// Take pushes again: there was no hand-over.
struct OpenGates {};
/// Dial this primary, again and again until a connection stands, and ask for its records from what is held
/// on; or, where a connection stands already, keep it.
struct Follow {
  DaemonId primary;
  uint64_t epoch;
};
/// Close the connection to the primary, dial no more, and take nothing that still comes from it.
struct CloseReplication {};
/// Tell the primary that this standby is about to end.
struct TellLeaving {};
/// This daemon is the primary of the group in this epoch: apply what is held, then take and answer pushes.
struct Promote {
  uint64_t epoch;
};
/// This daemon goes on as the primary, in this epoch from now on.
struct Renewed {
  uint64_t epoch;
};
/// Drop the trainers' sessions, throw the group's shards away, and begin anew: another DaemonId, another
/// GroupState. `handedOver`: the new primary holds exactly what is here, so the shards may be kept as a
/// beginning for following it (under another DaemonId all the same).
struct StepDown {
  bool handedOver;
};
/// The process may end. `alone`: nobody else holds the group, so save it first.
struct Ended {
  bool alone;
};
/// The run that this daemon took part in, or waited for, is over: it ends, too.
struct RunOver {};

}  // namespace group_action

using GroupAction =
    std::variant<group_action::Swap, group_action::Read, group_action::AnswerUpTo, group_action::TellInSync,
                 group_action::TellTakeOver, group_action::DropStandby, group_action::CloseGates,
                 group_action::OpenGates, group_action::Follow, group_action::CloseReplication,
                 group_action::TellLeaving, group_action::Promote, group_action::Renewed,
                 group_action::StepDown, group_action::Ended, group_action::RunOver>;
using GroupActions = std::vector<GroupAction>;

}  // namespace psd
