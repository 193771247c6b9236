#pragma once

#include <string>

#include "server/status/daemon_status.h"

namespace psd {

/// A human-readable view of a daemon's activity between two readings: rates, trainers, waits. `before` may
/// come from another daemon or be empty (uptimeSeconds 0); rates are then since the start.
std::string topTable(const DaemonStatus& before, const DaemonStatus& now);

}  // namespace psd
