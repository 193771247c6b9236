#pragma once

#include <cstdint>
#include <optional>

#include "common/types/daemon_id.h"
#include "server/plan/plan.h"

namespace psd {

/// A run that is over, as its plan has it. A value type.
struct EndedRun {
  uint64_t epoch = 0;                       ///< the last one
  DaemonId primary;                         ///< who served in it
  std::optional<DaemonId> standby;          ///< also held every answered push
  bool saved = true;                        ///< the primary keeps the model on its disk
  PlanSource source = PlanSource::daemons;  ///< another one: what a folder says, where there was no plan
  bool operator==(const EndedRun&) const = default;
  bool guessed() const { return source != PlanSource::daemons; }
};

/// What the plan, the document that the engine keeps, says of one group of shards: who serves, or that there
/// is no plan. A value type.
struct PlanView {
  uint64_t revision = 0;  ///< the document's: rises with every swap, also of other groups' parts, and where
                          ///< it is found gone; 0: none was seen yet
  uint64_t epoch = 0;     ///< of the group: rises by one with each change of its primary, from 1
  DaemonId primary;       ///< who answers pushes; nobody: there is no plan
  std::optional<DaemonId>
      standby;  ///< who holds all answered pushes and may take over; nobody: the primary is alone
  std::optional<EndedRun> ended = {};  ///< of a plan whose run is over: that run
  bool operator==(const PlanView&) const = default;
  /// Whether no daemon serves: there is no plan, or its run is over.
  bool vacant() const { return primary == DaemonId{}; }
  /// Whether both say the same of the group, whatever became of the rest of the document.
  bool sameGroup(const PlanView& other) const {
    return epoch == other.epoch && primary == other.primary && standby == other.standby &&
           ended == other.ended;
  }
};

}  // namespace psd
