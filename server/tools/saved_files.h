#pragma once

#include <functional>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

// Shared by the commands that read what a daemon has saved on disk.

Result<bool> isCheckpoint(Env& env, const std::string& path);

Error noCheckpointIn(const std::string& folder);

/// An Error if nothing exists at `path`; the same text for every command.
Status checkExists(Env& env, const std::string& path);

/// An Error if `folder` is a file or a single checkpoint; it should be a folder of checkpoints and a log.
Status checkDurabilityPath(Env& env, const std::string& folder);

/// The last component of a path.
std::string nameIn(const std::string& path);

/// Runs `look`, and retries it if it fails while a running daemon removes files that it reads.
Status retryBesideDaemon(Env& env, const std::string& folder, const std::function<Status()>& look);

}  // namespace psd
