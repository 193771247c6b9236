#pragma once

#include <cstdint>
#include <span>

#include "trainer/remote/loss_result.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// What rows of scores come to beside the labels of what is true, one of each row.
struct ClassSums {
  double loss = 0;   ///< cross-entropy, of all
  double right = 0;  ///< of how many rows the label has the highest score
};

/// Whether each label is one of the classes, of which the last extent of the output is; the error names it
/// (invalidArgument).
Status checkLabels(const NamedTensor& output, std::span<const int64_t> labels);

// With labels that passed that, and as many as the output has rows. Scores may be logits or
// log-probabilities: the softmax of the latter are the probabilities.

/// The mean cross-entropy, and its gradient.
LossResult meanCrossEntropy(const NamedTensor& output, std::span<const int64_t> labels);
ClassSums sumScores(const NamedTensor& output, std::span<const int64_t> labels);

}  // namespace psd
