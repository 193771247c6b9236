#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "server/config/parameter_groups.h"
#include "server/publish/publish_config.h"

namespace psd {

/// The values in which the target daemons of a move must equal the source daemons: those that the model's
/// state depends on, those that trainers learned when they joined, and with `publish` those of its published
/// versions. A line "policy.period: 50" for each.
std::string moveRules(const std::vector<GroupConfig>& groups, const PublishConfig* publish = nullptr);

/// ErrorCode::invalidArgument, with each key that differs and both values, where a model cannot move from
/// daemons with the rules `before`, a peer's text, to one with the rules `here`.
Status checkMoveRules(std::string_view before, std::string_view here);

}  // namespace psd
