#pragma once

#include <memory>

namespace psd {

/// The parameters of a pass: one float per element of ModelLayout(spec()). If the owner changes them during a
/// pass, the gradient corresponds to no single state.
using Weights = std::shared_ptr<const float>;

}  // namespace psd
