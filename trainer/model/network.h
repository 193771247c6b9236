#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "common/types/model_spec.h"
#include "trainer/task/batch.h"
#include "trainer/task/score.h"

namespace psd {

/// The tensors of a batch by name, on the model's device: of each column [samples, …column.shape]; of each
/// lookup its rows [ids, dim], in the order of its ids, and under the name and ".ids" these, i64 [ids].
using Tensors = std::map<std::string, torch::Tensor, std::less<>>;

/// A model as LibTorch sees it. Its named parameters, in order, become the ModelSpec. Whoever calls it sees
/// to train(), eval() and gradients. Includes LibTorch: only the files of this folder that build networks
/// include it.
class Network : public torch::nn::Module {
 public:
  /// The columns that it takes of a batch: `batch` below has these.
  virtual std::vector<ColumnSpec> inputs() const = 0;
  /// Its embedding tables; in the ModelSpec after the parameters.
  virtual std::vector<TableSpec> tables() const { return {}; }
  /// See Model::lookUp(): `batch` below has these rows. What is drawn by chance is drawn with LibTorch's
  /// generator.
  virtual std::vector<RowLookup> lookUp(const Batch&, Purpose) { return {}; }
  /// The mean loss over a batch, a scalar that gradients flow back from.
  virtual torch::Tensor loss(const Tensors& batch) = 0;
  /// The sums of a batch, "loss" first.
  virtual Score score(const Tensors& batch) = 0;
};

}  // namespace psd
