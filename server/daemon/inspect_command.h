#pragma once

#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd inspect`: what a checkpoint, a folder of them, a segment of a log or a safetensors file holds, every
/// checksum verified; to standard output, as `json` one document. An Error when something in it is damaged,
/// which the document names too. Blocks.
Status inspect(Env& env, const std::string& path, bool json);

}  // namespace psd
