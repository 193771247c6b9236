#pragma once

#include "common/config/config_reader.h"
#include "common/types/inner_optimizer.h"

namespace psd {

inline constexpr Key kInnerKey{"inner",
                               "Optimizer of the trainers' local steps, which `psd-trainer` runs. The daemon "
                               "runs `optimizer` on the sum of these steps."};

/// Reads the inner optimizer that trainers run in local steps: "type", "lr", the options of the type and
/// "schedule", with LibTorch's defaults. Errors are recorded in the reader.
InnerOptimizer readInnerOptimizer(ConfigReader in);

}  // namespace psd
