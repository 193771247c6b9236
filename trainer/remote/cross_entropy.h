#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/remote/loss_result.h"
#include "trainer/task/score.h"

// What a trainer of a classifier computes by itself, in host memory and without LibTorch.

namespace psd {

/// The mean cross-entropy of `labels` under the softmax of the one output, f32[samples, classes], and its
/// gradient. Scores may be logits or log-probabilities: the softmax of the latter are the probabilities.
/// invalidArgument: the outputs are not such, or a label is none of the classes.
Result<LossResult> crossEntropy(const std::vector<NamedTensor>& outputs, std::span<const int64_t> labels);

/// Loss, first, and accuracy.
Result<Score> scoreClasses(const std::vector<NamedTensor>& outputs, std::span<const int64_t> labels);

}  // namespace psd
