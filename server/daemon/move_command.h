#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "server/daemon/daemon_calls.h"

namespace psd {

/// Lets the daemons at `to`, of which it is one or several addresses of one, serve the model of those that
/// are called; `patience`: for trainers to step aside. Prints what came of it.
Status moveServer(const DaemonCall& call, const std::vector<std::string>& to,
                  std::chrono::milliseconds patience);

}  // namespace psd
