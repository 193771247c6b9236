#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/one_per_sample.h"

namespace psd {

namespace {

/// The negative log-likelihood of the label under these log-odds, without overflow.
double lossOfLogit(double logit, bool label) {
  return std::max(logit, 0.0) - (label ? logit : 0) + std::log1p(std::exp(-std::abs(logit)));
}

double probabilityOf(double logit) {
  if (logit >= 0) return 1 / (1 + std::exp(-logit));
  return std::exp(logit) / (1 + std::exp(logit));
}

}  // namespace

Result<LossResult> computeBinaryCrossEntropy(const NamedTensor& output, const NamedTensor& target) {
  return meanLoss<int64_t>(LossKind::binaryCrossEntropy, output, target, [](double logit, int64_t label) {
    return std::pair(lossOfLogit(logit, label != 0), probabilityOf(logit) - (label != 0 ? 1 : 0));
  });
}

Result<Score> scoreLogits(const NamedTensor& output, const NamedTensor& target) {
  PSD_RETURN_IF_ERROR(checkOnePerSample(LossKind::binaryCrossEntropy, output, target));
  const std::span<const float> logits = output.values<float>();
  const std::span<const int64_t> labels = target.values<int64_t>();
  double loss = 0;
  Metric auc = Metric::auc("auc");
  for (size_t i = 0; i < labels.size(); i++) {
    loss += lossOfLogit(logits[i], labels[i] != 0);
    auc.count(logits[i], labels[i] != 0);
  }
  const auto samples = static_cast<double>(labels.size());
  return Score{labels.size(), {Metric::of("loss", MetricKind::mean, loss, samples), std::move(auc)}};
}

}  // namespace psd
