#pragma once

#include <string>
#include <vector>

#include "common/os/address.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The row of a daemon with this status that is reachable at `address`.
DaemonRow rowOf(const DaemonStatus& status, const Address& address);

/// The address by which others know a daemon. `listed`: the addresses of its partition in `daemons`, in a
/// replica set those of both replicas; `reached`: the addresses that it advertises; `others`: the addresses
/// of the other replica; null: it has no replica set.
Address addressForOthers(const std::vector<Address>& listed, const std::vector<Address>& reached,
                         const std::vector<Address>* others);

/// The one of a daemon's pages that a browser can open which reaches the daemon at `address`; empty: none.
std::string pageFor(const std::vector<std::string>& pages, const Address& address);

}  // namespace psd
