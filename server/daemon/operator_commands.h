#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/auth/credentials.h"
#include "common/status/status.h"
#include "server/config/daemon_config.h"

namespace psd {

/// The subcommands for people who run a daemon. Each prints to standard output and blocks.

/// A running daemon, and how long to wait for its answer.
struct DaemonCall {
  std::vector<std::string> servers;  ///< addresses; the first that can be connected to counts
  std::chrono::milliseconds timeout{0};
  Credentials credentials;
};

/// `psd check`: the effective configuration as JSON, defaults included.
void printConfig(const LoadedConfig& loaded);

/// `psd status`: a table for people, or the daemon's JSON.
Status printStatus(const DaemonCall& call, bool json);

/// `psd status --hot`: the rows of embedding tables with the most updates, for people or as the daemon's
/// JSON.
Status printHotRows(const DaemonCall& call, bool json);

/// `psd reload`: the daemon reads its configuration again. Prints what has changed.
Status reloadServer(const DaemonCall& call);

/// `psd stop`: returns once all is saved, nobody is served any more and the connection is closed. The process
/// may take some moments more.
Status stopServer(const DaemonCall& call);

}  // namespace psd
