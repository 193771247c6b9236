#include "trainer/model/binary_classifier.h"

#include <utility>

#include <torch/utils.h>

namespace psd {
namespace {

torch::Tensor labelsOf(const Tensors& batch) { return batch.at("label").to(torch::kFloat32); }

}  // namespace

torch::Tensor BinaryClassifier::loss(const Tensors& batch) {
  return torch::binary_cross_entropy_with_logits(logits(batch), labelsOf(batch));
}

std::vector<ColumnSpec> BinaryClassifier::outputInputs() const {
  std::vector<ColumnSpec> columns = inputs();
  columns.pop_back();
  return columns;
}

Tensors BinaryClassifier::outputs(const Tensors& batch) {
  Tensors outputs;
  outputs.emplace("logits", logits(batch));
  return outputs;
}

LossSpec BinaryClassifier::outputLoss() const {
  return {LossKind::binaryCrossEntropy, "logits", inputs().back(), ""};
}

Score BinaryClassifier::score(const Tensors& batch) {
  const torch::Tensor output = logits(batch), label = labelsOf(batch);
  const auto sum = [](const torch::Tensor& tensor) { return tensor.sum(torch::kFloat64).item<double>(); };
  const auto losses = torch::binary_cross_entropy_with_logits(output, label, {}, {}, at::Reduction::None);
  Metric auc = Metric::auc("auc");
  const torch::Tensor scores = output.cpu().contiguous(), truths = label.cpu();
  for (int64_t i = 0; i < scores.size(0); ++i) {
    auc.count(scores.data_ptr<float>()[i], truths.data_ptr<float>()[i] != 0);
  }
  const auto samples = static_cast<uint64_t>(output.size(0));
  return {samples,
          {Metric::of("loss", MetricKind::mean, sum(losses), static_cast<double>(samples)), std::move(auc),
           Metric::of("calibration", MetricKind::mean, sum(torch::sigmoid(output)), sum(label))}};
}

}  // namespace psd
