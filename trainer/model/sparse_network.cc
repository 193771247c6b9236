#include "trainer/model/sparse_network.h"

#include <utility>

#include <torch/utils.h>

#include "trainer/task/sparse_columns.h"

namespace psd {

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
  return {{std::string(kSparseIds), ElementType::i64, {width_}},
          {std::string(kSparseValues), ElementType::f32, {width_}},
          {std::string(kSparseLabel), ElementType::i64, {}, 2}};
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

}  // namespace psd
