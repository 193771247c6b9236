#pragma once

#include "common/status/status.h"
#include "server/config/daemon_config.h"
#include "server/tools/daemon_calls.h"

namespace psd {

// `psd doctor`: prints one line per check, or with `json` one document, to standard output. An Error if any
// check fails. Blocks.

/// Before a run: whether this machine suits the configuration.
Status examineHost(Env& env, const LoadedConfig& loaded, bool json);

/// A running daemon, as its status shows it, with the room on the disks of `durability.path` and `save`; on
/// the daemon's machine also its process's open descriptors.
Status examineDaemon(const DaemonCall& call, bool json);

}  // namespace psd
