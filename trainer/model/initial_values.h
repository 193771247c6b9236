#pragma once

#include <string>

#include "common/os/env.h"
#include "trainer/model/model.h"

namespace psd {

/// Replaces model.parameters() by what a file holds under the same names, with the same shapes: a
/// .safetensors file of float32, else a module that torch.jit.save wrote, whose parameters are converted from
/// whatever floating-point type they have. What else the file holds is passed over. Every error names the
/// file, and the tensor where it is one's (ErrorCode::modelMismatch); the parameters are then as they may be.
Status loadInitialValues(Model& model, Env& env, const std::string& path);

}  // namespace psd
