#pragma once

#include <torch/utils.h>

#include "trainer/model/row_tables.h"
#include "trainer/model/sparse_network.h"

namespace psd {

/// A factorization machine (Rendle 2010): the logit is a bias, plus the sum of the features' values times
/// their weights, plus the inner products of the factors, times the values, of all pairs of features. The
/// table "linear" has the weights, "factors" the factors. Owned by one thread.
class FactorizationMachine : public SparseNetwork {
 public:
  explicit FactorizationMachine(uint32_t dim, uint64_t width = ColumnSpec::kAny)
      : SparseNetwork(tables(dim), width), bias_(register_parameter("bias", torch::zeros({1}))) {}

 protected:
  torch::Tensor logits(const Tensors& batch) override {
    const Features features(batch);
    return logits(batch, features, features.scaled(rowsOf(batch, kFactors)));
  }
  /// `factors`: of each feature, times its value.
  torch::Tensor logits(const Tensors& batch, const Features& features, const torch::Tensor& factors) const {
    const torch::Tensor linear = features.sums(features.scaled(rowsOf(batch, kLinear))).squeeze(1);
    // The sum over all pairs, in linear time: (square of the sum − sum of the squares) / 2.
    const torch::Tensor pairs = features.sums(factors).square() - features.sums(factors.square());
    return bias_ + linear + pairs.sum(1) / 2;
  }

  static constexpr size_t kLinear = 0, kFactors = 1;

 private:
  static std::vector<TableSpec> tables(uint32_t dim) {
    constexpr float kInitialScale = 0.05f;
    std::vector<TableSpec> both = tablesOf({"linear"}, 1, {RowInitial::Kind::zero, 0});
    both.push_back(tablesOf({"factors"}, dim, {RowInitial::Kind::normal, kInitialScale}).front());
    return both;
  }

  torch::Tensor bias_;
};

}  // namespace psd
