#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/status/daemon_status.h"
#include "server/tools/daemon_calls.h"

namespace psd {

/// The hosts of those of the addresses that use TCP without TLS.
std::set<std::string> clearHostsOf(const std::vector<std::string>& servers);

/// A human-readable table of all processes of the replica sets that serve a model, primaries and followers;
/// empty if no daemon belongs to a replica set. `named`: the addresses that the operator gave; the token is
/// sent unencrypted to no other host, whatever addresses a daemon lists. `statuses`: the current status of
/// each of `daemons`. Blocks.
std::string replicaSetsOverview(const std::vector<std::string>& named, const std::vector<DaemonCall>& daemons,
                                const std::vector<Result<DaemonStatus>>& statuses);

}  // namespace psd
