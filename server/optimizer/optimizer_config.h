#pragma once

#include "common/config/object_reader.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// What an optimizer is for.
enum class OptimizerUse {
  tensors,  ///< tensors, or tensors and embedding tables
  rows,     ///< embedding tables alone
};

/// Reads `type`, `lr`, the options of that type and `schedule`; the defaults are LibTorch's (sgd:
/// lr 0.01). Like every reading, problems are remembered in `reader` and reported by its finish(); one is a
/// type that is for embedding tables alone where tensors are meant too.
Optimizer readOptimizer(ObjectReader& reader, OptimizerUse use = OptimizerUse::tensors);

/// Writes all that readOptimizer() needs to make an equal optimizer.
nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer);

}  // namespace psd
