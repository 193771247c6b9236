#pragma once

#include <vector>

#include "common/types/model_spec.h"

namespace psd {

/// The model of a running daemon at one moment. A value type.
struct LiveModel {
  ModelSpec spec;
  std::vector<float> values;  ///< of its tensors, as ModelLayout places them; rows of tables are not in it
};

}  // namespace psd
