#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/disk_room.h"
#include "common/os/env.h"
#include "server/config/daemon_config.h"

namespace psd {

/// One line of `psd doctor`. A value type.
struct Finding {
  enum class Outcome { ok, warn, fail, skip };  ///< skip: it could not be looked at
  std::string check;                            ///< what was looked at: "disk"
  Outcome outcome = Outcome::ok;
  std::string text;  ///< what was found and, unless it is ok, what to do
};

/// What a daemon with this configuration would find on this machine. For a moment binds its addresses, locks
/// an existing folder of its state, opens its CUDA devices, and writes a temporary file to its folders.
/// Blocks.
std::vector<Finding> checkHost(Env& env, const DaemonConfig& config);

/// The key of the configuration by which the daemon writes to a disk.
enum class DiskKey { durability, save };

/// Whether a file system has enough room; `name` says which it is.
Finding checkRoom(const std::string& name, const DiskRoom& room, DiskKey key);

}  // namespace psd
