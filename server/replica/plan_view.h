#pragma once

#include <cstdint>
#include <optional>

#include "common/types/daemon_id.h"

namespace psd {

/// What the plan, the document that the engine keeps, says of one group of shards: who serves, or that there
/// is no plan. A value type.
struct PlanView {
  uint64_t revision = 0;  ///< the document's: rises with every swap, also of other groups' parts, and where
                          ///< it is found gone; 0: none was seen yet
  uint64_t epoch = 0;     ///< of the group: rises by one with each change of its primary, from 1
  DaemonId primary;       ///< who answers pushes; nobody: there is no plan
  std::optional<DaemonId>
      standby;  ///< who holds all answered pushes and may take over; nobody: the primary is alone
  bool operator==(const PlanView&) const = default;
  /// Whether there is no plan: none yet, or none any more.
  bool vacant() const { return primary == DaemonId{}; }
  /// Whether both say the same of the group, whatever became of the rest of the document.
  bool sameGroup(const PlanView& other) const {
    return epoch == other.epoch && primary == other.primary && standby == other.standby;
  }
};

}  // namespace psd
