#pragma once

#include <string>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/executor/executor_config.h"

namespace psd {

/// Whether there is all that serving needs but the daemon and the addresses: the module, memory for it, and
/// the files of `tls`.
Status checkExecutor(const ExecutorConfig& config);

/// Serves until SIGINT or SIGTERM, and then ends the process, with 0. `daemon`: what it shows the daemon.
/// `portFile`: where the TCP port is written once it can be reached; empty: nowhere.
Status serveExecutor(const ExecutorConfig& config, const ClientOptions& daemon, const std::string& portFile);

}  // namespace psd
