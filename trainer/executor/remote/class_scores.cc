#include "trainer/executor/remote/class_scores.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace psd {
namespace {

/// The cross-entropy of one row. `probabilities`, if not empty, is set to the softmax of its scores.
double lossOf(std::span<const float> scores, size_t label, std::span<double> probabilities) {
  const double most = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - most);
  for (size_t i = 0; i < probabilities.size(); i++) probabilities[i] = std::exp(scores[i] - most) / sum;
  return std::log(sum) - (scores[label] - most);
}

}  // namespace

Status checkLabels(const NamedTensor& output, std::span<const int64_t> labels) {
  const uint64_t classes = output.shape.back();
  for (const int64_t label : labels) {
    if (label >= 0 && static_cast<uint64_t>(label) < classes) continue;
    return {ErrorCode::invalidArgument,
            fmt::format("label {} is not one of the {} classes of {}", label, classes, output.toString())};
  }
  return {};
}

LossResult meanCrossEntropy(const NamedTensor& output, std::span<const int64_t> labels) {
  const size_t classes = output.shape.back();
  NamedTensor gradient = output;
  const std::span<const float> scores = output.values<float>();
  const std::span<float> slopes = gradient.values<float>();
  std::vector<double> probabilities(classes);
  const auto rows = static_cast<double>(labels.size());
  double loss = 0;
  for (size_t i = 0; i < labels.size(); i++) {
    const auto label = static_cast<size_t>(labels[i]);
    loss += lossOf(scores.subspan(i * classes, classes), label, probabilities) / rows;
    probabilities[label] -= 1;
    for (size_t k = 0; k < classes; k++) {
      slopes[i * classes + k] = static_cast<float>(probabilities[k] / rows);
    }
  }
  return {loss, {std::move(gradient)}};
}

ClassSums sumScores(const NamedTensor& output, std::span<const int64_t> labels) {
  const size_t classes = output.shape.back();
  ClassSums sums;
  for (size_t i = 0; i < labels.size(); i++) {
    const auto scores = output.values<float>().subspan(i * classes, classes);
    sums.loss += lossOf(scores, static_cast<size_t>(labels[i]), {});
    if (std::ranges::max_element(scores) - scores.begin() == labels[i]) sums.right++;
  }
  return sums;
}

}  // namespace psd
