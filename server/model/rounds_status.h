#pragma once

#include <string>
#include <string_view>

#include "server/policy/rounds_report.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Converts a policy's report of its rounds for the status. Each rank appears once, even if its trainer died
/// and rejoined within a round, and a rank whose gradient is in a round is not missing from it.
RoundsStatus roundsStatusOf(const RoundsReport& report, std::string group, std::string_view policy);

}  // namespace psd
