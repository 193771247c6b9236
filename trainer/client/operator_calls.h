#pragma once

#include <string>

#include "trainer/client/transport/daemon_connection.h"

// The calls of an operator to one daemon. Each function is called on the connection's event loop, where the
// promises resolve, and fails (forbidden) where the login did not grant the role that the call needs.

namespace psd {

/// The daemon's status as JSON. One call of a connection at a time.
kj::Promise<Result<std::string>> readStatus(DaemonConnection& connection);
/// Changes one key of the daemon's configuration, "optimizer.lr=0.05". Returns what has changed,
/// human-readable.
kj::Promise<Result<std::string>> setKey(DaemonConnection& connection, const std::string& assignment);
/// Dry run of setKey(); succeeds at a daemon that is too old for it.
kj::Promise<Result<std::string>> checkKey(DaemonConnection& connection, const std::string& assignment);
/// Returns the path of a checkpoint that is taken after this call, once it is complete.
kj::Promise<Result<std::string>> takeCheckpoint(DaemonConnection& connection);

}  // namespace psd
