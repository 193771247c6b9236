#include "trainer/model/row_leaves.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>
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

/// torch::embedding() on the CPU, with the same gradients. That one adds each gathered row by an iterator of
/// its own, which takes most of a step of a model with narrow rows.
class GatheredRows : public torch::autograd::Function<GatheredRows> {
 public:
  /// `rows` [count, dim], contiguous; `places` [ids] of them, which live until the backward pass. Returns
  /// [ids, dim].
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& rows,
                               const torch::Tensor& places) {
    context->save_for_backward({places});
    context->saved_data["count"] = rows.size(0);
    const int64_t dim = rows.size(1);
    torch::Tensor gathered = torch::empty({places.size(0), dim}, rows.options());
    const auto* from = rows.const_data_ptr<float>();
    auto* to = gathered.mutable_data_ptr<float>();
    for (const int64_t place : valuesOf(places)) to = std::copy_n(from + place * dim, dim, to);
    return gathered;
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const torch::Tensor places = context->get_saved_variables().front();
    const torch::Tensor gradient = gradients.front().contiguous();
    const int64_t dim = gradient.size(1);
    torch::Tensor sums = torch::zeros({context->saved_data["count"].toInt(), dim}, gradient.options());
    const auto* from = gradient.const_data_ptr<float>();
    auto* const to = sums.mutable_data_ptr<float>();
    for (const int64_t place : valuesOf(places)) {
      for (int64_t i = 0; i < dim; ++i) to[place * dim + i] += *from++;
    }
    return {sums, torch::Tensor()};
  }

 private:
  static std::span<const int64_t> valuesOf(const torch::Tensor& places) {
    return {places.const_data_ptr<int64_t>(), static_cast<size_t>(places.numel())};
  }
};

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
    const torch::Tensor& leaf = leaves_.at(lookup.table);
    tensors.emplace(lookup.name,
                    device_.is_cpu() ? GatheredRows::apply(leaf, places) : torch::embedding(leaf, places));
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
