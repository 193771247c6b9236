#pragma once

#include "server/policy/sync.h"

namespace psd {

/// DiLoCo (Douillard et al. 2023): trainers take `period` steps by themselves with an optimizer of their own,
/// from common parameters Θ, and push the pseudo-gradient Θ − θ of what they come to. A round as under `sync`
/// makes one of these, which the daemon's optimizer takes for a gradient. With a rule of grace a round closes
/// so long after a quorum is there, and who has not come is told before. With fragments (Streaming DiLoCo;
/// Douillard et al. 2025) each is a parameter group with such rounds of its own; a group that is written is a
/// fragment too, with other rules for its rounds. The class that does it is Sync.
struct Diloco {
  static PolicyPlan read(ObjectReader& options);
  static PolicyPlan readInGroup(ObjectReader& options, const LocalPlan& topLevel);
};

}  // namespace psd
