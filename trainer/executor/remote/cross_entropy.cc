#include <cstdint>
#include <span>

#include <fmt/format.h>

#include "trainer/executor/remote/class_scores.h"
#include "trainer/executor/remote/loss_list.h"

namespace psd {
namespace {

Status check(const NamedTensor& output, std::span<const int64_t> labels) {
  const bool fits = output.type == ElementType::f32 && output.shape.size() == 2 &&
                    output.shape[0] == labels.size() && output.shape[1] > 0;
  if (fits) return checkLabels(output, labels);
  return {ErrorCode::invalidArgument, fmt::format("cross_entropy of output {}; expected f32[{},classes]",
                                                  output.toString(), labels.size())};
}

}  // namespace

Result<LossResult> computeCrossEntropy(const NamedTensor& output, const NamedTensor& target) {
  const std::span<const int64_t> labels = target.values<int64_t>();
  PSD_RETURN_IF_ERROR(check(output, labels));
  return meanCrossEntropy(output, labels);
}

Result<Score> scoreClasses(const NamedTensor& output, const NamedTensor& target) {
  const std::span<const int64_t> labels = target.values<int64_t>();
  PSD_RETURN_IF_ERROR(check(output, labels));
  const ClassSums sums = sumScores(output, labels);
  const auto samples = static_cast<double>(labels.size());
  return Score{labels.size(),
               {Metric::of("loss", MetricKind::mean, sums.loss, samples),
                Metric::of("accuracy", MetricKind::share, sums.right, samples)}};
}

}  // namespace psd
