#include "trainer/model/sparse_network.h"

#include <utility>

#include <torch/utils.h>

#include "trainer/task/sparse_columns.h"

namespace psd {
namespace {

torch::Tensor labelsOf(const Tensors& batch) {
  return batch.at(std::string(kSparseLabel)).to(torch::kFloat32);
}

}  // namespace

SparseNetwork::Features::Features(const Tensors& batch) {
  const torch::Tensor& values = batch.at(std::string(kSparseValues));
  examples_ = values.size(0);
  width_ = values.size(1);
  values_ = values.reshape({-1, 1});
  torch::Tensor places = values_.squeeze(1).nonzero().squeeze(1);
  if (places.size(0) == values_.size(0)) return;
  values_ = values_.index_select(0, places);
  places_ = std::move(places);
}

torch::Tensor SparseNetwork::Features::sums(const torch::Tensor& perFeature) const {
  const int64_t dim = perFeature.size(1);
  if (!places_.defined()) return perFeature.view({examples_, width_, dim}).sum(1);
  const torch::Tensor examples = torch::floor_divide(places_, width_);
  return torch::zeros({examples_, dim}, perFeature.options()).index_add(0, examples, perFeature);
}

torch::Tensor SparseNetwork::Features::padded(const torch::Tensor& perFeature) const {
  const int64_t dim = perFeature.size(1);
  if (!places_.defined()) return perFeature.view({examples_, width_ * dim});
  return torch::zeros({examples_ * width_, dim}, perFeature.options())
      .index_copy(0, places_, perFeature)
      .view({examples_, width_ * dim});
}

SparseNetwork::SparseNetwork(std::vector<TableSpec> tables, uint64_t width)
    : tables_(std::move(tables)), width_(width) {}

std::vector<ColumnSpec> SparseNetwork::inputs() const {
  std::vector<ColumnSpec> columns = SparseNetwork::outputInputs();
  columns.push_back({std::string(kSparseLabel), ElementType::i64, {}, 2});
  return columns;
}

std::vector<ColumnSpec> SparseNetwork::outputInputs() const {
  return {{std::string(kSparseIds), ElementType::i64, {width_}},
          {std::string(kSparseValues), ElementType::f32, {width_}}};
}

std::vector<RowLookup> SparseNetwork::lookUp(const Batch& batch, Purpose) {
  const auto ids = batch.values<int64_t>(kSparseIds);
  const auto values = batch.values<float>(kSparseValues);
  std::vector<uint64_t> features;
  features.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (values[i] != 0) features.push_back(static_cast<uint64_t>(ids[i]));
  }
  std::vector<RowLookup> lookups;
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    lookups.push_back({tables_[table].name + kRowsSuffix, table, features});
  }
  return lookups;
}

torch::Tensor SparseNetwork::loss(const Tensors& batch) {
  return torch::binary_cross_entropy_with_logits(logits(batch), labelsOf(batch));
}

Tensors SparseNetwork::outputs(const Tensors& batch) {
  Tensors outputs;
  outputs.emplace("logits", logits(batch));
  return outputs;
}

LossSpec SparseNetwork::outputLoss() const {
  return {LossKind::binaryCrossEntropy, "logits", inputs().back(), ""};
}

Score SparseNetwork::score(const Tensors& batch) {
  const torch::Tensor output = logits(batch), label = labelsOf(batch);
  const auto sum = [](const torch::Tensor& tensor) { return tensor.sum(torch::kFloat64).item<double>(); };
  const auto losses = torch::binary_cross_entropy_with_logits(output, label, {}, {}, at::Reduction::None);
  Metric auc = Metric::auc("auc");
  const torch::Tensor scores = output.cpu().contiguous(), truths = label.cpu();
  for (int64_t i = 0; i < scores.size(0); ++i) {
    auc.count(scores.data_ptr<float>()[i], truths.data_ptr<float>()[i] != 0);
  }
  const auto examples = static_cast<uint64_t>(output.size(0));
  return {examples,
          {Metric::of("loss", MetricKind::mean, sum(losses), static_cast<double>(examples)), std::move(auc),
           Metric::of("calibration", MetricKind::mean, sum(torch::sigmoid(output)), sum(label))}};
}

}  // namespace psd
