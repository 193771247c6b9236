#pragma once

#include <string>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/config/daemon_config.h"
#include "server/tools/daemon_calls.h"

namespace psd {

// The subcommands for operators of a running daemon. Each prints to standard output and blocks. If several
// daemons serve the model, the commands that change, save or stop something apply to all of them, and so does
// printStatus().

/// `psd check`: prints the effective configuration as JSON, defaults included.
void printConfig(const LoadedConfig& loaded);
/// `psd check --schema`: the JSON Schema of configurations.
void printSchema();

/// `psd status`: a human-readable table, or the daemon's JSON. `here`: only of the called daemon.
Status printStatus(const DaemonCall& call, bool json, bool here);

/// `psd status --hot`: the rows of embedding tables with the most updates, as a table or as the daemon's
/// JSON.
Status printHotRows(const DaemonCall& call, bool json);

/// `psd reload`: the daemon rereads its configuration. Prints what has changed.
Status reloadServer(const DaemonCall& call);
/// `psd reload --dry-run`: prints what reloadServer() would change; changes nothing.
Status showReload(const DaemonCall& call);

/// `psd checkpoint`: the daemon takes a checkpoint now. Prints its path. Of several daemons each takes one;
/// without a log these are then committed as one checkpoint of the whole model.
Status checkpointServer(const DaemonCall& call);

/// `psd publish`: the daemon publishes a version now. Prints its number.
Status publishServer(const DaemonCall& call);

/// `psd rollback`: the model becomes that of a published version. Prints the version that this makes.
Status rollBackServer(const DaemonCall& call, uint64_t number);

/// `psd versions`: the published versions and who leases them, as a table or as the status's JSON.
Status printVersions(const DaemonCall& call, bool json);

/// `psd switch`: switchover; the standby becomes the primary, and the daemon its standby.
Status switchServer(const DaemonCall& call);

/// `psd recover`: promotes a daemon that waits for a dead primary.
Status recoverServer(const DaemonCall& call);

/// `psd trainer remove`: ends a trainer's session. Prints the removed trainer.
Status removeTrainerOf(const DaemonCall& call, Rank rank);

/// `psd set`: changes one key, "optimizer.lr=0.05", while the daemon runs. Prints what has changed.
Status setKeyOf(const DaemonCall& call, const std::string& assignment);

/// `psd export --server`: writes the daemon's current model as a .safetensors file.
Status exportServer(Env& env, const DaemonCall& call, const std::string& to);

/// `psd stop`: returns once everything is saved, no peer is served any more and the connection is closed. The
/// process may exit slightly later. Without `discard`, refuses if the model would be lost.
Status stopServer(const DaemonCall& call, bool discard);

}  // namespace psd
