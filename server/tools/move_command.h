#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "server/tools/daemon_calls.h"

namespace psd {

/// `psd move`: moves the model of the called daemons to the daemons at `to`, which is the address of any one
/// of them, or several addresses of one. `patience`: how long to wait for trainers to quiesce. Prints the
/// outcome.
Status moveServer(const DaemonCall& call, const std::vector<std::string>& to,
                  std::chrono::milliseconds patience);

}  // namespace psd
