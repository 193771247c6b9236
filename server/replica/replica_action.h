#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "server/replica/cluster_view.h"

namespace psd {

/// Actions that a ReplicaState requests, to be executed in order. Value types.
namespace replica_action {

/// Write `wanted` (its revision is ignored) to the cluster document if that still has the revision
/// `expectedRevision`; 0: if there is no document. Answered by exactly one of swapWon(), swapRefused(),
/// swapUnknown(). No second swap is requested before that.
struct Swap {
  uint64_t expectedRevision;
  ClusterView wanted;
};
/// Read the document. Answered by documentRead() or readUnknown(). The read must be linearizable.
struct Read {};
/// Pushes with records up to this number no longer wait for another daemon.
struct AnswerUpTo {
  uint64_t number;
};
/// Notify the standby that the document names it as standby.
struct NotifyInSync {
  DaemonId standby;
  ClusterView plan;
};
/// Notify the standby that the document names it as primary: it holds every record.
struct NotifyTakeover {
  DaemonId standby;
  ClusterView plan;
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
  uint64_t term;
};
/// Close the connection to the primary, stop dialing, and ignore what still arrives from it.
struct CloseReplication {};
/// Notify the primary that this standby is about to exit.
struct NotifyLeaving {};
/// This daemon is the primary in this term: apply what is held, then accept and answer pushes.
struct Promote {
  uint64_t term;
};
/// This daemon remains primary, in this term from now on.
struct TermRenewed {
  uint64_t term;
};
/// Drop the trainers' sessions, discard the shards, and restart with another DaemonId and another
/// ReplicaState. `handedOver`: the new primary holds exactly what is here, so the shards may be kept as a
/// starting point for following it (still under another DaemonId).
struct StepDown {
  bool handedOver;
};
/// The process may exit. `alone`: no other daemon holds the model, so save it first.
struct MayExit {
  bool alone;
};
/// The run that this daemon took part in, or waited for, is over: exit, too.
struct RunOver {};

}  // namespace replica_action

using ReplicaAction =
    std::variant<replica_action::Swap, replica_action::Read, replica_action::AnswerUpTo,
                 replica_action::NotifyInSync, replica_action::NotifyTakeover, replica_action::DropStandby,
                 replica_action::CloseGates, replica_action::OpenGates, replica_action::Follow,
                 replica_action::CloseReplication, replica_action::NotifyLeaving, replica_action::Promote,
                 replica_action::TermRenewed, replica_action::StepDown, replica_action::MayExit,
                 replica_action::RunOver>;
using ReplicaActions = std::vector<ReplicaAction>;

}  // namespace psd
