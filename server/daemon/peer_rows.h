#pragma once

#include <string>
#include <vector>

#include "common/os/address.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The row of a daemon with this status, as it is reached at `address`.
DaemonRow rowOf(const DaemonStatus& status, const Address& address);

/// By which address others know a daemon. `listed`: those of its partition in `daemons`, of a pair those of
/// both; `reached`: where it says that it is reached; `others`: of a pair, where the other one is; null: it
/// is alone.
Address addressForOthers(const std::vector<Address>& listed, const std::vector<Address>& reached,
                         const std::vector<Address>* others);

/// Which of a daemon's pages a browser finds that is where `address` leads to the daemon; empty: none.
std::string pageFor(const std::vector<std::string>& pages, const Address& address);

}  // namespace psd
