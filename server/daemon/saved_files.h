#pragma once

#include <functional>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

// What the commands share that read what a daemon leaves on the disk.

Result<bool> isCheckpoint(Env& env, const std::string& path);

Error noCheckpointIn(const std::string& folder);

/// Every command's word for a path at which there is nothing.
Status checkExists(Env& env, const std::string& path);

/// Whether `folder` is one with checkpoints and a log, as far as its kind tells.
Status checkDurabilityPath(Env& env, const std::string& folder);

/// The last part of a path.
std::string nameIn(const std::string& path);

/// `look` fails where a daemon removes what it is reading: then it looks again.
Status besideDaemon(Env& env, const std::string& folder, const std::function<Status()>& look);

}  // namespace psd
