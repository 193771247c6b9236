#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/types/model_layout.h"

namespace psd::testing {

/// An arena in which every parameter of the model has the same value and the padding is zero.
inline std::vector<float> everyParameter(const ModelSpec& model, float value) {
  const ModelLayout layout(model);
  std::vector<float> values(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(place.begin), place.count, value);
  }
  return values;
}

}  // namespace psd::testing
