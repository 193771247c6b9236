#pragma once

#include <string>

#include "common/os/env.h"
#include "trainer/model/model.h"

namespace psd {

/// Replaces model.parameters() by the tensors of a file with the same names and shapes: a .safetensors file
/// of float32, else a module written by torch.jit.save, whose parameters are converted from any
/// floating-point type. Other contents of the file are ignored. Errors name the file and, if one is at fault,
/// the tensor (ErrorCode::modelMismatch); the parameters are then unspecified.
Status loadInitialValues(Model& model, Env& env, const std::string& path);

}  // namespace psd
