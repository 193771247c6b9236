#include "trainer/remote/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

Result<size_t> classesOf(const std::vector<NamedTensor>& outputs, std::span<const int64_t> labels) {
  const bool fits = outputs.size() == 1 && outputs[0].type == ElementType::f32 &&
                    outputs[0].shape.size() == 2 && outputs[0].shape[0] == labels.size() && !labels.empty() &&
                    outputs[0].shape[1] > 0;
  if (!fits) {
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("the module gives {}; expected one output f32[{},classes]: cross-entropy is the loss "
                    "that this trainer knows",
                    joined(outputs, ", ", [](const NamedTensor& each) { return each.toString(); }),
                    labels.size())};
  }
  const uint64_t classes = outputs[0].shape[1];
  for (const int64_t label : labels) {
    if (label >= 0 && static_cast<uint64_t>(label) < classes) continue;
    return Error{ErrorCode::invalidArgument, fmt::format("label {} is none of the {} classes of {}", label,
                                                         classes, outputs[0].toString())};
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

Result<LossResult> crossEntropy(const std::vector<NamedTensor>& outputs, std::span<const int64_t> labels) {
  PSD_ASSIGN_OR_RETURN(const size_t classes, classesOf(outputs, labels));
  NamedTensor gradient = outputs[0];
  const std::span<const float> scores = outputs[0].values<float>();
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
  if (!std::isfinite(loss)) {
    return Error{ErrorCode::nonFinite, "the loss is not finite; was the learning rate too high?"};
  }
  LossResult result{loss, {}};
  result.gradients.push_back(std::move(gradient));
  return result;
}

Result<Score> scoreClasses(const std::vector<NamedTensor>& outputs, std::span<const int64_t> labels) {
  PSD_ASSIGN_OR_RETURN(const size_t classes, classesOf(outputs, labels));
  double loss = 0, right = 0;
  for (size_t i = 0; i < labels.size(); i++) {
    const auto scores = outputs[0].values<float>().subspan(i * classes, classes);
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
