#pragma once

#include <functional>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Runs a daemon until SIGTERM, SIGINT, `psd stop` or the end of its trainers: logging, devices, event loops,
/// signals, the final save, in this order and back. Blocks; called once, from main().
///
/// `portFile` (empty: none) receives the TCP port as a decimal line once the daemon can be reached.
/// `reread` gives the configuration anew, when SIGHUP or `psd reload` asks for it.
Status runDaemon(const LoadedConfig& loaded, std::function<Result<LoadedConfig>()> reread,
                 const std::string& portFile, Env& env);

}  // namespace psd
