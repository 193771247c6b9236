#pragma once

#include <string>

#include <torch/csrc/jit/api/module.h>

#include "common/status/status.h"

namespace psd {

/// Loads a TorchScript file into host memory; `extra`: as for torch::jit::load(). Errors name the path.
Result<torch::jit::Module> loadScript(const std::string& path, torch::jit::ExtraFilesMap& extra);

}  // namespace psd
