#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace psd {

/// Something in a method that writes to a parameter.
struct ParameterWrite {
  std::string parameter;
  std::string operation;  ///< "aten::mul_ (points.py:12)"
};

/// Looks for what could write to one of the module's parameters when `method` runs: in every branch, in what
/// it calls, and by whatever name the parameter has there. A call whose code is not known before it is made,
/// as through an interface, counts as writing to the first.
std::optional<ParameterWrite> findParameterWrite(
    const torch::jit::Module& module, const std::string& method,
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters);

}  // namespace psd
