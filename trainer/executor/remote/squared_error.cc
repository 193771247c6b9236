#include <cstddef>
#include <utility>

#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/one_per_sample.h"

namespace psd {

Result<LossResult> computeSquaredError(const NamedTensor& output, const NamedTensor& target) {
  return meanLoss<float>(LossKind::squaredError, output, target, [](double value, float truth) {
    const double error = value - truth;
    return std::pair(error * error, 2 * error);
  });
}

Result<Score> scoreRegression(const NamedTensor& output, const NamedTensor& target) {
  PSD_RETURN_IF_ERROR(checkOnePerSample(LossKind::squaredError, output, target));
  const std::span<const float> guesses = output.values<float>(), truths = target.values<float>();
  double squares = 0;
  for (size_t i = 0; i < truths.size(); i++) {
    const double error = double{guesses[i]} - truths[i];
    squares += error * error;
  }
  const auto samples = static_cast<double>(truths.size());
  return Score{truths.size(),
               {Metric::of("loss", MetricKind::mean, squares, samples),
                Metric::of("rmse", MetricKind::root, squares, samples)}};
}

}  // namespace psd
