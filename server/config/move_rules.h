#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// The keys in which daemons to which a model moves are as those that it had before: what the state is of,
/// and what trainers learned when they joined and do not learn anew. A line "policy.period: 50" for each.
std::string moveRules(const std::vector<GroupConfig>& groups);

/// ErrorCode::invalidArgument, with each key that differs and both its values, where a model of daemons with
/// the rules `before` could not go on at one with the rules `here`. `before` is a peer's.
Status checkMoveRules(std::string_view before, std::string_view here);

}  // namespace psd
