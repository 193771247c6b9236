#pragma once

#include <string>

#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// The subcommands for people who run a daemon. Each prints to standard output and blocks.

/// `psd check`: the effective configuration as JSON, defaults included.
void printConfig(const LoadedConfig& loaded);

/// `psd status`: a table for people, or the daemon's JSON.
Status printStatus(const std::string& server, bool json);

/// `psd reload`: the daemon reads its configuration again. Prints what has changed.
Status reloadServer(const std::string& server);

/// `psd stop`: returns once the daemon has ended.
Status stopServer(const std::string& server);

/// The table that `psd status` prints for a status document.
std::string formatStatus(const nlohmann::ordered_json& status);

}  // namespace psd
