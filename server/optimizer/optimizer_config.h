#pragma once

#include "common/config/config_reader.h"
#include "server/optimizer/optimizer.h"

namespace psd {

/// Intended use of an optimizer.
enum class OptimizerUse {
  tensors,  ///< tensors, or tensors and embedding tables
  rows,     ///< embedding tables only
};

/// Reads `type`, `lr`, the options of that type and `schedule`; the defaults are LibTorch's (sgd: lr 0.01). A
/// type for embedding tables only is an error where `use` includes tensors.
Optimizer readOptimizer(ConfigReader in, OptimizerUse use = OptimizerUse::tensors);

/// Reads what writeOptimizer() wrote; the text may be a peer's. ErrorCode::invalidArgument.
Result<Optimizer> parseOptimizer(std::string_view text);

/// Writes everything readOptimizer() needs to construct an equal optimizer.
nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer);

}  // namespace psd
