#pragma once

#include "server/policy/sync.h"

namespace psd {

/// DiLoCo (Douillard et al. 2023): from common parameters Θ, trainers take `period` local steps with an inner
/// optimizer and push the pseudo-gradient Θ − θ. A round as under `sync` combines these into one, which the
/// daemon's optimizer applies as a gradient. With a grace period, a round closes that long after its quorum,
/// and trainers that have not contributed are notified beforehand. With fragments (Streaming DiLoCo;
/// Douillard et al. 2025), each fragment is a parameter group with its own rounds; a configured parameter
/// group is also a fragment, with its own round options. Implemented by Sync.
struct Diloco {
  static PolicyPlan read(ConfigReader options);
  static PolicyPlan readInGroup(ConfigReader options, const LocalPlan& topLevel);
};

}  // namespace psd
