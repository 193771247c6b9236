#pragma once

#include <string>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/executor/executor_config.h"

namespace psd {

/// Checks everything that serving needs except the daemon and the addresses: the module, memory for it, and
/// the files of `tls`.
Status checkExecutor(const ExecutorConfig& config);

/// Serves until SIGINT or SIGTERM, then exits the process with status 0, or with 1 after a device fault.
/// Returns only if startup fails. `daemon`: how to connect to the daemon. `portFile`: the TCP port is written
/// to it once the executor accepts connections; empty: not written.
Status serveExecutor(const ExecutorConfig& config, const ClientOptions& daemon, const std::string& portFile);

}  // namespace psd
