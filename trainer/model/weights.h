#pragma once

#include <memory>

namespace psd {

/// The parameters that a pass computes with: as many floats as ModelLayout(spec()) has elements. Whoever owns
/// them may change them meanwhile: then the gradient is of none of the states.
using Weights = std::shared_ptr<const float>;

}  // namespace psd
