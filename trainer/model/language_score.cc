#include "trainer/model/language_score.h"

#include <torch/nn/functional/loss.h>

namespace psd {

void LanguageScore::add(const torch::Tensor& logits, const torch::Tensor& targets) {
  lossSum_ += torch::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).item<double>();
  correct_ += static_cast<double>(logits.argmax(1).eq(targets).sum().item<int64_t>());
  predicted_ += static_cast<double>(targets.size(0));
}

Score LanguageScore::of(int64_t samples) const {
  return {static_cast<uint64_t>(samples),
          {Metric::of("loss", MetricKind::mean, lossSum_, predicted_),
           Metric::of("perplexity", MetricKind::exponential, lossSum_, predicted_),
           Metric::of("accuracy", MetricKind::share, correct_, predicted_)}};
}

}  // namespace psd
