#pragma once

#include <span>
#include <vector>

#include <torch/types.h>

#include "common/types/model_spec.h"
#include "trainer/model/network.h"
#include "trainer/task/batch_rows.h"

namespace psd {

/// The rows of a batch as LibTorch computes with them: of each table a small leaf tensor [rows, dim], which
/// lookups gather from. On the CPU leaves and their gradients are views of the batch's memory, so nothing is
/// copied, and autograd adds into what is pushed. Owned by one thread.
class RowLeaves {
 public:
  RowLeaves(const std::vector<TableSpec>& tables, torch::Device device) : tables_(tables), device_(device) {}

  /// Adds the lookups of a batch to its tensors. In training gradients flow back to the leaves.
  void addTo(Tensors& tensors, const BatchRows& rows, Purpose purpose);
  /// Of a network that has no backward pass: the gradients of what the lookups gathered, by their names.
  void addLookupGradients(const BatchRows& rows, const Tensors& gradients) const;
  /// After a backward pass over these tensors: the batch has the gradients.
  void addGradients(const BatchRows& rows) const;

  // Where gradients are asked for in place of a backward pass:

  /// Of each table one, of the newest batch.
  const std::vector<torch::Tensor>& all() const { return leaves_; }
  /// The batch has these gradients of all(), of which one that is undefined is zero.
  void putGradients(const BatchRows& rows, std::span<const torch::Tensor> gradients) const;

 private:
  torch::Tensor leafOf(const RowBlock& block, uint32_t dim, Purpose purpose) const;

  const std::vector<TableSpec> tables_;
  const torch::Device device_;
  std::vector<torch::Tensor> leaves_;  // of the newest batch, by table
};

}  // namespace psd
