#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/daemon/daemon_calls.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The hosts of those addresses that are reached over TCP without TLS.
std::set<std::string> clearHostsOf(const std::vector<std::string>& servers);

/// All processes of the pairs that serve a model, primaries and those that follow, for people; empty where
/// none of them is in a pair. `named`: the addresses that the operator gave; a token goes in the clear to
/// nobody else, whatever addresses a daemon lists. `statuses`: what each of `daemons` answered just now.
/// Blocks.
std::string pairsOverview(const std::vector<std::string>& named, const std::vector<DaemonCall>& daemons,
                          const std::vector<Result<DaemonStatus>>& statuses);

}  // namespace psd
