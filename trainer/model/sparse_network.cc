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
  return padded(perFeature).view({examples_, width_, dim}).sum(1);
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
  std::vector<uint64_t> features(ids.size());
  size_t count = 0;
  for (size_t i = 0; i < ids.size(); ++i) {  // without a branch, since it is hard to predict
    features[count] = static_cast<uint64_t>(ids[i]);
    count += values[i] != 0 ? 1 : 0;
  }
  features.resize(count);
  std::vector<RowLookup> lookups(tables_.size());
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    lookups[table].name = tables_[table].name + kRowsSuffix;
    lookups[table].table = table;
    if (table > 0) lookups[table].ids = features;
  }
  lookups.front().ids = std::move(features);
  return lookups;
}

}  // namespace psd
