#pragma once

#include <string>

#include "server/status/daemon_row.h"
#include "server/status/group_status.h"

namespace psd {

/// All daemons that serve a model and stand by, for people: a row for each, and a line for each that waits or
/// is away.
std::string daemonsTable(const DaemonRows& rows);

/// What one daemon is in its pair, for people: a line, and one for whatever is wrong.
std::string groupLines(const GroupStatus& group);

}  // namespace psd
