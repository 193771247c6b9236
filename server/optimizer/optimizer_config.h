#pragma once

#include "common/config/object_reader.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// Reads `type`, `lr`, the options of that type and `schedule`; the defaults are LibTorch's (sgd:
/// lr 0.01). Like every reading, problems are remembered in `reader` and reported by its finish().
Optimizer readOptimizer(ObjectReader& reader);

/// Writes all that readOptimizer() needs to make an equal optimizer.
nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer);

}  // namespace psd
