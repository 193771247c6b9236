#pragma once

#include <cstdint>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd placement`: prints the placement of a model over `daemons` daemons to standard output; `json`: as one
/// document. `path`: a checkpoint or a safetensors file of a whole model, or a folder of checkpoints, of
/// which the newest complete one is used. ErrorCode::invalidArgument if the model cannot be cut into that
/// many partitions. Blocks.
Status printPlacement(Env& env, const std::string& path, uint32_t daemons, bool json);

}  // namespace psd
