#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "trainer/remote/loss_list.h"

namespace psd {

namespace {

/// Scores may be logits or log-probabilities: the softmax of the latter are the probabilities.
Result<size_t> classesOf(const NamedTensor& output, std::span<const int64_t> labels) {
  const bool fits = output.type == ElementType::f32 && output.shape.size() == 2 &&
                    output.shape[0] == labels.size() && output.shape[1] > 0;
  if (!fits) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("cross_entropy of output {}; expected f32[{},classes]", output.toString(),
                             labels.size())};
  }
  const uint64_t classes = output.shape[1];
  for (const int64_t label : labels) {
    if (label >= 0 && static_cast<uint64_t>(label) < classes) continue;
    return Error{ErrorCode::invalidArgument,
                 fmt::format("label {} is none of the {} classes of {}", label, classes, output.toString())};
  }
  return classes;
}

/// The cross-entropy of one sample; `probabilities`, if not empty, become the softmax of its scores.
double lossOf(std::span<const float> scores, size_t label, std::span<double> probabilities) {
  const double most = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - most);
  for (size_t i = 0; i < probabilities.size(); i++) probabilities[i] = std::exp(scores[i] - most) / sum;
  return std::log(sum) - (scores[label] - most);
}

}  // namespace

Result<LossResult> computeCrossEntropy(const NamedTensor& output, const NamedTensor& target) {
  const std::span<const int64_t> labels = target.values<int64_t>();
  PSD_ASSIGN_OR_RETURN(const size_t classes, classesOf(output, labels));
  NamedTensor gradient = output;
  const std::span<const float> scores = output.values<float>();
  std::vector<double> probabilities(classes);
  const auto samples = static_cast<double>(labels.size());
  double loss = 0;
  for (size_t i = 0; i < labels.size(); i++) {
    const auto label = static_cast<size_t>(labels[i]);
    loss += lossOf(scores.subspan(i * classes, classes), label, probabilities) / samples;
    probabilities[label] -= 1;
    for (size_t k = 0; k < classes; k++) {
      gradient.values<float>()[i * classes + k] = static_cast<float>(probabilities[k] / samples);
    }
  }
  return LossResult{loss, {std::move(gradient)}};
}

Result<Score> scoreClasses(const NamedTensor& output, const NamedTensor& target) {
  const std::span<const int64_t> labels = target.values<int64_t>();
  PSD_ASSIGN_OR_RETURN(const size_t classes, classesOf(output, labels));
  double loss = 0, right = 0;
  for (size_t i = 0; i < labels.size(); i++) {
    const auto scores = output.values<float>().subspan(i * classes, classes);
    const auto label = static_cast<size_t>(labels[i]);
    loss += lossOf(scores, label, {});
    if (std::ranges::max_element(scores) - scores.begin() == labels[i]) right++;
  }
  const auto samples = static_cast<double>(labels.size());
  return Score{labels.size(),
               {Metric::of("loss", MetricKind::mean, loss, samples),
                Metric::of("accuracy", MetricKind::share, right, samples)}};
}

}  // namespace psd
