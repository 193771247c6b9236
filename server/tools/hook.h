#pragma once

#include <chrono>
#include <map>
#include <string>

#include "common/status/status.h"

namespace psd {

/// Runs a command by /bin/sh, with these variables added to the environment and standard input empty, and
/// waits for it. An Error that names the command if it cannot be started, exits with another status than 0,
/// or runs longer than `timeout`, after which it is killed with the processes of its group. Blocks.
Status runHook(const std::string& command, const std::map<std::string, std::string>& environment,
               std::chrono::milliseconds timeout);

}  // namespace psd
