#pragma once

#include "common/config/object_reader.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// Reads `type`, `lr`, the options of that type and `schedule`; the defaults are LibTorch's (sgd:
/// lr 0.01). Like every reading, problems are remembered in `reader` and reported by its finish().
Optimizer readOptimizer(ObjectReader& reader);

/// All that readOptimizer() needs to give the same optimizer again.
nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer);

}  // namespace psd
