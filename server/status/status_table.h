#pragma once

#include <string>

#include "server/status/daemon_status.h"

namespace psd {

/// What `psd status` prints: a status for people, in lines.
std::string statusTable(const DaemonStatus& status);

}  // namespace psd
