#pragma once

#include <cstdint>
#include <span>

#include "trainer/executor/remote/loss_result.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// Sums over rows of class scores, compared with the true labels, one per row.
struct ClassSums {
  double loss = 0;   ///< sum of the rows' cross-entropies
  double right = 0;  ///< number of rows whose label has the highest score
};

/// Checks that each label is a valid class; the last extent of the output is the number of classes. The error
/// (invalidArgument) names the label.
Status checkLabels(const NamedTensor& output, std::span<const int64_t> labels);

// The functions below require labels that have passed checkLabels(), one per row of the output. Scores may be
// logits or log-probabilities, since the softmax of log-probabilities is the probabilities.

/// The mean cross-entropy, and its gradient.
LossResult meanCrossEntropy(const NamedTensor& output, std::span<const int64_t> labels);
ClassSums sumScores(const NamedTensor& output, std::span<const int64_t> labels);

}  // namespace psd
