#pragma once

#include <string>

#include "server/status/daemon_status.h"
#include "server/status/hot_rows.h"

namespace psd {

/// What `psd status` prints: a status for people, in lines.
std::string statusTable(const DaemonStatus& status);

/// The hottest rows of each table for people.
std::string hotRowsTable(const HotRowsStatus& status);

}  // namespace psd
