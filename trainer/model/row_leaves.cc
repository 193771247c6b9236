#include "trainer/model/row_leaves.h"

#include <torch/utils.h>

namespace psd {
namespace {

torch::Tensor floats(std::span<float> values, uint32_t dim) {
  return torch::from_blob(values.data(), {static_cast<int64_t>(values.size() / dim), dim});
}

/// A view, used for reading only.
template <class Number>
torch::Tensor wholeNumbers(std::span<Number> numbers) {
  using Plain = std::remove_const_t<Number>;
  static_assert(sizeof(Plain) == sizeof(int64_t));
  return torch::from_blob(const_cast<Plain*>(numbers.data()), {static_cast<int64_t>(numbers.size())},
                          torch::kInt64);
}

}  // namespace

torch::Tensor RowLeaves::leafOf(const RowBlock& block, uint32_t dim, Purpose purpose) const {
  torch::Tensor leaf = floats(block.values, dim).to(device_);
  if (purpose == Purpose::scoring) return leaf;
  leaf.requires_grad_(true);
  leaf.mutable_grad() = device_.is_cpu() ? floats(block.gradients, dim) : torch::zeros_like(leaf);
  return leaf;
}

void RowLeaves::addTo(Tensors& tensors, const BatchRows& rows, Purpose purpose) {
  leaves_.clear();
  for (size_t i = 0; i < rows.blocks.size(); ++i) {
    leaves_.push_back(leafOf(rows.blocks[i], tables_[i].dim, purpose));
  }
  for (const RowLookup& lookup : rows.lookups) {
    const torch::Tensor places = wholeNumbers(lookup.places).to(device_);
    tensors.emplace(lookup.name, torch::embedding(leaves_.at(lookup.table), places));
    tensors.emplace(lookup.name + ".ids", wholeNumbers(std::span(lookup.ids)).to(device_));
  }
}

void RowLeaves::addLookupGradients(const BatchRows& rows, const Tensors& gradients) const {
  for (const RowLookup& lookup : rows.lookups) {
    const torch::Tensor places = wholeNumbers(lookup.places).to(device_);
    const int64_t dim = tables_[lookup.table].dim;
    leaves_.at(lookup.table)
        .mutable_grad()
        .index_add_(0, places, gradients.at(lookup.name).reshape({-1, dim}));
  }
}

void RowLeaves::addGradients(const BatchRows& rows) const {
  if (device_.is_cpu()) return;  // autograd has added them in place
  for (size_t i = 0; i < leaves_.size(); ++i) {
    floats(rows.blocks[i].gradients, tables_[i].dim).add_(leaves_[i].grad().cpu());
  }
}

void RowLeaves::putGradients(const BatchRows& rows, std::span<const torch::Tensor> gradients) const {
  const torch::NoGradGuard noGraph;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) floats(rows.blocks[i].gradients, tables_[i].dim).copy_(gradients[i]);
  }
}

}  // namespace psd
