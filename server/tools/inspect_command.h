#pragma once

#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd inspect`: prints the contents of a checkpoint, a folder of checkpoints, a log segment or a
/// safetensors file to standard output and verifies every checksum. `json`: as one document. Returns an Error
/// if anything is damaged, which the output names too. Blocks.
Status inspect(Env& env, const std::string& path, bool json);

}  // namespace psd
