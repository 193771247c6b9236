#pragma once

#include <string>

#include "server/status/daemon_status.h"

namespace psd {

/// What a daemon did between two looks, for people: rates, who does what, who waits for whom. `before` may be
/// of another daemon, or of no look at all (uptimeSeconds 0): rates are then since the start.
std::string topTable(const DaemonStatus& before, const DaemonStatus& now);

}  // namespace psd
