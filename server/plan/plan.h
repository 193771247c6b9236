#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_id.h"
#include "common/types/daemon_places.h"

namespace psd {

/// A daemon's process: the random number that it draws at its start, never 0. One that was started again, or
/// has thrown its state away, is another.
using DaemonId = StrongId<struct DaemonIdTag, uint64_t>;

inline constexpr size_t kPlanDaemonsMax = 1024;
inline constexpr size_t kPlanAddressesMax = 16;  ///< of one daemon

/// The daemon that serves, and the one that may follow it. A value type.
struct PlannedGroup {
  uint64_t epoch = 1;               ///< rises by one with every change of the primary
  DaemonId primary;                 ///< who answers
  std::optional<DaemonId> standby;  ///< who holds all that was answered, and may become primary
  uint64_t history = 0;  ///< whose records the primary goes on with, never 0: new with each primary
  bool operator==(const PlannedGroup&) const = default;
};

/// How the model of a run went to other daemons. A value type.
struct PlannedMove {
  uint64_t move = 0;  ///< the move's number, never 0
  DaemonPlaces to;    ///< the daemons that serve it now
  bool operator==(const PlannedMove&) const = default;
};

/// Who wrote a plan. Only daemons that take part decide; a daemon over a folder writes that folder's record.
enum class PlanSource : uint8_t {
  daemons,        ///< a daemon that serves, or takes over
  primaryFolder,  ///< there was no plan: a daemon whose folder has the state of a primary
  standbyFolder,  ///< the same, of a standby
};

/// Who serves a model, or a partition of it: what its daemons agree on, by changing it all at once. A value
/// type.
struct Plan {
  uint64_t proposal = 0;  ///< a random number of who wrote this, never 0: no two plans have one text
  PlannedGroup group;
  std::map<DaemonId, std::vector<Address>> daemons;  ///< where to dial those of the group, and perhaps others
  bool ended = false;                                ///< the run is over: nobody serves it any more
  bool saved = true;  ///< of a run that is over: its last primary keeps the model on its disk
  PlanSource source = PlanSource::daemons;  ///< another one: `ended`, and no more than a guess
  std::optional<PlannedMove> moved = {};    ///< of a run that is over here alone: others serve it
  bool operator==(const Plan&) const = default;
  bool fromFolder() const { return source != PlanSource::daemons; }
};

/// Whether it holds together. Errors name the place by its path in the document (plan_json.h).
Status validatePlan(const Plan& plan);

// Changes, each made of a valid plan, and itself one. They do not ask who may make them. invalidArgument: the
// change makes no sense of that plan.

/// The daemon, whose addresses the plan has, is primary from the next epoch on, with a history of its own and
/// without a standby. Who was primary or standby, and is neither now, is dropped from `daemons`.
Result<Plan> withPrimary(Plan plan, DaemonId daemon, uint64_t history, uint64_t proposal);
/// The daemon follows, where nobody does.
Result<Plan> withStandby(Plan plan, DaemonId daemon, std::vector<Address> addresses, uint64_t proposal);
/// The run goes on with other daemons, and is over here.
Result<Plan> withMove(Plan plan, PlannedMove moved, uint64_t proposal);
/// Nobody follows any more. The standby that was is dropped as above.
Result<Plan> withoutStandby(Plan plan, uint64_t proposal);

}  // namespace psd
