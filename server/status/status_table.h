#pragma once

#include <string>

#include "server/status/daemon_status.h"
#include "server/status/hot_rows.h"

namespace psd {

/// Output of `psd status`: a human-readable status, in lines.
std::string statusTable(const DaemonStatus& status);

/// The published versions and their leases, human-readable.
std::string versionsTable(const PublishStatus& publish);

/// The most updated rows of each table, human-readable.
std::string hotRowsTable(const HotRowsStatus& status);

}  // namespace psd
