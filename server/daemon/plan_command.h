#pragma once

#include <cstdint>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd plan`: which part of a model each of so many daemons would serve; to standard output, as `json` one
/// document. `path`: a checkpoint, a folder of them, of which the newest whole one counts, or a safetensors
/// file, of a whole model. ErrorCode::invalidArgument where the model cannot be cut into so many. Blocks.
Status planDaemons(Env& env, const std::string& path, uint32_t daemons, bool json);

}  // namespace psd
