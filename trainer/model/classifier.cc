#include "trainer/model/classifier.h"

#include <torch/nn/functional/loss.h>

namespace psd {

Classifier::Classifier(std::vector<uint64_t> imageShape, uint64_t classCount)
    : inputs_{{"image", ElementType::f32, std::move(imageShape)},
              {"label", ElementType::i64, {}, classCount}} {}

torch::Tensor Classifier::forward(const torch::Tensor& images) {
  torch::Tensor x = images;
  for (const Layer& layer : layers()) x = layer.run(x);
  return x;
}

torch::Tensor Classifier::loss(const Tensors& batch) {
  return torch::nll_loss(forward(batch.at("image")), batch.at("label"));
}

Tensors Classifier::outputs(const Tensors& batch) {
  Tensors outputs;
  outputs.emplace("scores", forward(batch.at("image")));
  return outputs;
}

LossSpec Classifier::outputLoss() const { return {LossKind::crossEntropy, "scores", inputs_.back(), ""}; }

Score Classifier::score(const Tensors& batch) {
  const torch::Tensor& labels = batch.at("label");
  const torch::Tensor output = forward(batch.at("image"));
  const auto lossSum = torch::nll_loss(output, labels, {}, at::Reduction::Sum).item<double>();
  const auto correct = static_cast<double>(output.argmax(1).eq(labels).sum().item<int64_t>());
  const auto samples = static_cast<double>(labels.size(0));
  return {static_cast<uint64_t>(labels.size(0)),
          {Metric::of("loss", MetricKind::mean, lossSum, samples),
           Metric::of("accuracy", MetricKind::share, correct, samples)}};
}

}  // namespace psd
