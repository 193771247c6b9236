#pragma once

#include "common/config/object_reader.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// Intended use of an optimizer.
enum class OptimizerUse {
  tensors,  ///< tensors, or tensors and embedding tables
  rows,     ///< embedding tables only
};

/// Reads `type`, `lr`, the options of that type and `schedule`; the defaults are LibTorch's (sgd: lr 0.01).
/// Errors are collected in `reader` and reported by its finish(), including a type for embedding tables only
/// where `use` includes tensors.
Optimizer readOptimizer(ObjectReader& reader, OptimizerUse use = OptimizerUse::tensors);

/// Writes everything readOptimizer() needs to construct an equal optimizer.
nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer);

}  // namespace psd
