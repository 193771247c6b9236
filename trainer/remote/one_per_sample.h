#pragma once

#include <fmt/format.h>

#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// Whether an output is one number of f32 for each sample of the target, as a loss of that kind takes it.
inline Status checkOnePerSample(LossKind kind, const NamedTensor& output, const NamedTensor& target) {
  const uint64_t samples = target.elementCount();
  const bool shaped = !output.shape.empty() && output.shape.front() == samples && output.shape.size() <= 2;
  if (shaped && output.type == ElementType::f32 && output.elementCount() == samples) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} of output {}; expected f32[{}]", kLossKinds[static_cast<size_t>(kind)],
                      output.toString(), samples)};
}

}  // namespace psd
