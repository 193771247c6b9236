#pragma once

#include <cstdint>
#include <string>

#include "common/os/env.h"

namespace psd {

/// Disk usage of psd's files in a folder, in bytes. A value type.
struct DiskUse {
  uint64_t log = 0;
  uint64_t checkpoints = 0;
};

/// A file that cannot be read counts as zero bytes. Blocks.
DiskUse diskUse(Env& env, const std::string& folder);

}  // namespace psd
