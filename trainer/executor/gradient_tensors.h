#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// The gradients of a backward pass. Does not own them.
struct ComputedGradient {
  const float* dense = nullptr;    ///< laid out by ModelLayout
  const RowBatch* rows = nullptr;  ///< null: the model has no tables
};

/// Copies of the gradients of the named parameters and tables, or of all if `names` is empty. A table yields
/// two tensors: f32[rows, dim] under its name, and the ids of its rows, i64[rows], under its name plus
/// ".ids". invalidArgument: a name is unknown, or the copies would exceed `bytesMax`.
Result<std::vector<NamedTensor>> gradientTensors(const ModelSpec& spec, const ComputedGradient& gradient,
                                                 const std::vector<std::string>& names, uint64_t bytesMax);

}  // namespace psd
