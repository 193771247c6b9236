#pragma once

#include "common/config/object_reader.h"
#include "common/types/inner_optimizer.h"

namespace psd {

/// Reads what trainers run in steps of their own: "type", "lr", the options of that type and "schedule", with
/// LibTorch's defaults. Problems go to the reader.
InnerOptimizer readInnerOptimizer(ObjectReader in);

}  // namespace psd
