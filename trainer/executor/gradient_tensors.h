#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/client/row_batch.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// What a backward pass has left. Somebody else's.
struct ComputedGradient {
  const float* dense = nullptr;    ///< laid out by ModelLayout
  const RowBatch* rows = nullptr;  ///< null: the model has no tables
};

/// Copies of the gradients of the parameters and tables with these names, none named: of all. A table gives
/// two: f32[rows, dim] by its name, and the rows' ids, i64[rows], by that and ".ids". invalidArgument: there
/// is no such name, or they are more than `bytesMax`.
Result<std::vector<NamedTensor>> gradientTensors(const ModelSpec& spec, const ComputedGradient& gradient,
                                                 const std::vector<std::string>& names, uint64_t bytesMax);

}  // namespace psd
