#pragma once

#include <vector>

#include "server/config/daemon_config.h"

namespace psd {

/// Whether a daemon that runs with `now` can change to `next`: keys declared as live may differ, except where
/// that would change the optimizer's state, what trainers learned when they joined, or how a log replays.
/// ErrorCode::invalidArgument names each key that may not, and both values.
Status checkLiveChange(const LoadedConfig& now, const LoadedConfig& next);

/// Per group, true if its policy is the same in both configurations, which checkLiveChange() accepts.
std::vector<bool> samePolicies(const LoadedConfig& now, const LoadedConfig& next);

/// The keys that differ, each with both values, for the log: "optimizer.lr: 0.1 -> 0.05, …"; else empty.
std::string describeChange(const LoadedConfig& now, const LoadedConfig& next);

}  // namespace psd
