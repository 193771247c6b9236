#pragma once

#include <string>
#include <vector>

#include "server/daemon/daemon_calls.h"
#include "server/status/daemon_status.h"

namespace psd {

/// All processes of the pairs that serve a model, primaries and those that follow, for people; empty where
/// none of them is in a pair. `statuses`: what each of `daemons` answered just now. Blocks.
std::string pairsOverview(const std::vector<DaemonCall>& daemons,
                          const std::vector<Result<DaemonStatus>>& statuses);

}  // namespace psd
