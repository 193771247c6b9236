#pragma once

#include "common/config/object_reader.h"
#include "common/types/inner_optimizer.h"

namespace psd {

/// Reads the inner optimizer that trainers run in local steps: "type", "lr", the options of the type and
/// "schedule", with LibTorch's defaults. Errors are recorded in the reader.
InnerOptimizer readInnerOptimizer(ObjectReader in);

}  // namespace psd
