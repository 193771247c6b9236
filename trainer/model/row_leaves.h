#pragma once

#include <span>
#include <vector>

#include <torch/types.h>

#include "common/types/model_spec.h"
#include "trainer/model/network.h"
#include "trainer/task/batch_rows.h"

namespace psd {

/// The rows of a batch as LibTorch tensors: one leaf tensor [rows, dim] per table, from which lookups gather.
/// On the CPU leaves and their gradients are views of the batch's memory, so nothing is copied, and autograd
/// adds directly to the pushed gradients. Owned by one thread.
class RowLeaves {
 public:
  RowLeaves(const std::vector<TableSpec>& tables, torch::Device device) : tables_(tables), device_(device) {}

  /// Adds the lookups of a batch to its tensors. In training the leaves require gradients.
  void addTo(Tensors& tensors, const BatchRows& rows, Purpose purpose);
  /// For a network without a backward pass: adds the gradients of the gathered rows, by lookup name, to the
  /// leaves.
  void addLookupGradients(const BatchRows& rows, const Tensors& gradients) const;
  /// Adds the leaves' gradients to the batch, after a backward pass.
  void addGradients(const BatchRows& rows) const;

  // For explicit gradients (torch::autograd::grad) in place of a backward pass:

  /// One leaf per table, of the newest batch.
  const std::vector<torch::Tensor>& all() const { return leaves_; }
  /// Writes these gradients of all() to the batch; an undefined one is zero.
  void putGradients(const BatchRows& rows, std::span<const torch::Tensor> gradients) const;

 private:
  torch::Tensor leafOf(const RowBlock& block, uint32_t dim, Purpose purpose) const;

  const std::vector<TableSpec> tables_;
  const torch::Device device_;
  std::vector<torch::Tensor> leaves_;  // of the newest batch, by table
};

}  // namespace psd
