#pragma once

#include <string>
#include <string_view>

#include "server/policy/rounds_report.h"
#include "server/status/daemon_status.h"

namespace psd {

/// What a group's policy tells of its rounds, for the status: each rank once, also of a trainer that died and
/// came back in one round, and one whose gradient is in a round is not missing in it.
RoundsStatus roundsStatusOf(const RoundsReport& report, std::string group, std::string_view policy);

}  // namespace psd
