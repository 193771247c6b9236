#pragma once

#include <memory>
#include <vector>

#include "common/safetensors/buffer_set.h"
#include "common/types/model_spec.h"

namespace psd {

/// A snapshot of a running daemon's model. A value type.
struct LiveModel {
  ModelSpec spec;
  std::vector<float> values;  ///< of its tensors, in ModelLayout order; table rows are not included
  std::shared_ptr<const BufferSet> buffers = nullptr;  ///< null: none
};

}  // namespace psd
