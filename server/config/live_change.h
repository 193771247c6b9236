#pragma once

#include <vector>

#include "server/config/daemon_config.h"

namespace psd {

/// Whether a daemon that runs with `now` can go on with `next`: policies with their options, the optimizers'
/// numbers and schedules, log.level and most limits may differ. ErrorCode::invalidArgument names the first
/// key that may not, and both values.
Status checkLiveChange(const LoadedConfig& now, const LoadedConfig& next);

/// Per group, true if its policy is the same in both configurations, which checkLiveChange() lets pass.
std::vector<bool> samePolicies(const LoadedConfig& now, const LoadedConfig& next);

/// The keys that differ, each with both values, for the log: "optimizer.lr: 0.1 -> 0.05, …"; empty when none
/// does.
std::string describeChange(const LoadedConfig& now, const LoadedConfig& next);

}  // namespace psd
