#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "trainer/executor/remote/loss_result.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// Checks that an output has one f32 value per sample of the target, as a loss of this kind requires.
inline Status checkOnePerSample(LossKind kind, const NamedTensor& output, const NamedTensor& target) {
  const uint64_t samples = target.elementCount();
  const bool shaped = !output.shape.empty() && output.shape.front() == samples && output.shape.size() <= 2;
  if (shaped && output.type == ElementType::f32 && output.elementCount() == samples) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} of output {}; expected f32[{}]", kLossKinds[static_cast<size_t>(kind)],
                      output.toString(), samples)};
}

/// The mean over samples of a loss with one output value per sample, and its gradient. `lossOf(value, truth)`
/// returns the loss of a sample and its derivative.
template <class Truth, class LossOf>
Result<LossResult> meanLoss(LossKind kind, const NamedTensor& output, const NamedTensor& target,
                            const LossOf& lossOf) {
  PSD_RETURN_IF_ERROR(checkOnePerSample(kind, output, target));
  NamedTensor gradient = output;
  const std::span<float> slopes = gradient.values<float>();
  const std::span<const Truth> truths = target.values<Truth>();
  const auto samples = static_cast<double>(truths.size());
  double sum = 0;
  for (size_t i = 0; i < truths.size(); i++) {
    const auto [loss, slope] = lossOf(double{slopes[i]}, truths[i]);
    sum += loss / samples;
    slopes[i] = static_cast<float>(slope / samples);
  }
  return LossResult{sum, {std::move(gradient)}};
}

}  // namespace psd
