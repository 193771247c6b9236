#pragma once

#include <string>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/config/daemon_config.h"
#include "server/daemon/daemon_calls.h"

namespace psd {

// The subcommands for people who run a daemon. Each prints to standard output and blocks. Of a model that
// several daemons serve, those that change, save or stop something go to all of them, and so does
// printStatus().

/// `psd check`: the effective configuration as JSON, defaults included.
void printConfig(const LoadedConfig& loaded);

/// `psd status`: a table for people, or the daemon's JSON. `here`: of this daemon alone.
Status printStatus(const DaemonCall& call, bool json, bool here);

/// `psd status --hot`: the rows of embedding tables with the most updates, for people or as the daemon's
/// JSON.
Status printHotRows(const DaemonCall& call, bool json);

/// `psd reload`: the daemon reads its configuration again. Prints what has changed.
Status reloadServer(const DaemonCall& call);

/// `psd checkpoint`: the daemon takes one now. Prints its path. Of several daemons each takes one; without a
/// log these are then one of the whole model.
Status checkpointServer(const DaemonCall& call);

/// `psd switch`: the standby becomes the primary, and the daemon its standby.
Status switchServer(const DaemonCall& call);

/// `psd recover`: a daemon that waits for a dead primary takes its place.
Status recoverServer(const DaemonCall& call);

/// `psd trainer remove`: ends a trainer's session. Prints who that was.
Status removeTrainerOf(const DaemonCall& call, Rank rank);

/// `psd set`: changes one key, "optimizer.lr=0.05", while the daemon runs. Prints what has changed.
Status setKeyOf(const DaemonCall& call, const std::string& assignment);

/// `psd export --server`: writes the model that the daemon has now as a .safetensors file.
Status exportServer(Env& env, const DaemonCall& call, const std::string& to);

/// `psd stop`: returns once all is saved, nobody is served any more and the connection is closed. The process
/// may take some moments more.
Status stopServer(const DaemonCall& call);

}  // namespace psd
