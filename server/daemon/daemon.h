#pragma once

#include <functional>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Runs a daemon until SIGTERM, SIGINT, `psd stop` or the end of its run. Sets up logging, devices, event
/// loops and signals, in this order; tears them down in reverse after the final save. Blocks; called once,
/// from main().
///
/// `portFile` (empty: none) receives the TCP port as a decimal line once the daemon accepts connections.
/// `reread` loads the configuration again, on SIGHUP or `psd reload`.
Status runDaemon(const LoadedConfig& loaded, std::function<Result<LoadedConfig>()> reread,
                 const std::string& portFile, Env& env);

}  // namespace psd
