#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Disk usage of psd's files in a folder, in bytes. A value type.
struct DiskUse {
  uint64_t log = 0;
  uint64_t checkpoints = 0;
  std::vector<KeptCheckpointStatus> kept;  ///< the newest kKeptMax finished checkpoints, oldest first

  static constexpr size_t kKeptMax = 64;
};

/// A file that cannot be read counts as zero bytes. `before`: the previous result, whose checkpoints'
/// manifests need not be read again. Blocks.
DiskUse diskUse(Env& env, const std::string& folder, const DiskUse& before = {});

}  // namespace psd
