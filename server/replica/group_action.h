#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "server/replica/plan_view.h"

namespace psd {

/// Actions that a GroupState requests, to be executed in order. Value types.
namespace group_action {

/// Write `wanted` (its revision is ignored) to the cluster document if that still has the revision
/// `expectedRevision`; 0: if there is no document. Answered by exactly one of swapWon(), swapRefused(),
/// swapUnknown(). No second swap is requested before that.
struct Swap {
  uint64_t expectedRevision;
  PlanView wanted;
};
/// Read the document. Answered by planRead() or readUnknown(). The read must be linearizable.
struct Read {};
/// Pushes with records up to this number no longer wait for another daemon.
struct AnswerUpTo {
  uint64_t number;
};
/// Notify the standby that the document names it as standby.
struct TellInSync {
  DaemonId standby;
  PlanView plan;
};
/// Notify the standby that the document names it as primary: it holds every record.
struct TellTakeOver {
  DaemonId standby;
  PlanView plan;
};
/// Close the replication connection to this daemon; it may connect again.
struct DropStandby {
  DaemonId standby;
};
/// Accept no new pushes, finish those in flight, then call gatesClosed().
struct CloseGates {};
/// Accept pushes again: the switchover did not happen.
struct OpenGates {};
/// Dial this primary until a connection is established, and request its records from the first one not held;
/// keep the connection if there is one already.
struct Follow {
  DaemonId primary;
  uint64_t epoch;
};
/// Close the connection to the primary, stop dialing, and ignore what still arrives from it.
struct CloseReplication {};
/// Notify the primary that this standby is about to exit.
struct TellLeaving {};
/// This daemon is the primary in this term: apply what is held, then accept and answer pushes.
struct Promote {
  uint64_t epoch;
};
/// This daemon remains primary, in this term from now on.
struct Renewed {
  uint64_t epoch;
};
/// Drop the trainers' sessions, discard the shards, and restart with another DaemonId and another GroupState.
/// `handedOver`: the new primary holds exactly what is here, so the shards may be kept as a starting point
/// for following it (still under another DaemonId).
struct StepDown {
  bool handedOver;
};
/// The process may exit. `alone`: no other daemon holds the model, so save it first.
struct Ended {
  bool alone;
};
/// The run that this daemon took part in, or waited for, is over: exit, too.
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
