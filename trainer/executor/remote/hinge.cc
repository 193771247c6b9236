#include <algorithm>
#include <cstddef>
#include <utility>

#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/one_per_sample.h"

namespace psd {

namespace {

double signOf(int64_t label) { return label != 0 ? 1 : -1; }

}  // namespace

Result<LossResult> computeHinge(const NamedTensor& output, const NamedTensor& target) {
  return meanLoss<int64_t>(LossKind::hinge, output, target, [](double margin, int64_t label) {
    const double lacking = 1 - signOf(label) * margin;
    return lacking > 0 ? std::pair(lacking, -signOf(label)) : std::pair(0.0, 0.0);
  });
}

Result<Score> scoreMargins(const NamedTensor& output, const NamedTensor& target) {
  PSD_RETURN_IF_ERROR(checkOnePerSample(LossKind::hinge, output, target));
  const std::span<const float> margins = output.values<float>();
  const std::span<const int64_t> labels = target.values<int64_t>();
  double loss = 0, right = 0;
  for (size_t i = 0; i < labels.size(); i++) {
    loss += std::max(1 - signOf(labels[i]) * margins[i], 0.0);
    right += (margins[i] > 0) == (labels[i] != 0) ? 1 : 0;
  }
  const auto samples = static_cast<double>(labels.size());
  return Score{labels.size(),
               {Metric::of("loss", MetricKind::mean, loss, samples),
                Metric::of("accuracy", MetricKind::share, right, samples)}};
}

}  // namespace psd
