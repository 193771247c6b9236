#include <memory>

#include <torch/utils.h>

#include "trainer/model/model_list.h"
#include "trainer/model/row_tables.h"
#include "trainer/model/sparse_network.h"

namespace psd {
namespace {

/// Logistic regression: the logit is a bias plus the sum of the features' values times their weights. Owned
/// by one thread.
class Logistic : public SparseNetwork {
 public:
  Logistic()
      : SparseNetwork(tablesOf({"weights"}, 1, {RowInitial::Kind::zero, 0})),
        bias_(register_parameter("bias", torch::zeros({1}))) {}

 private:
  torch::Tensor logits(const Tensors& batch) override {
    const Features features(batch);
    return bias_ + features.sums(features.scaled(rowsOf(batch, 0))).squeeze(1);
  }

  torch::Tensor bias_;
};

}  // namespace

NetworkMaker readLogistic(NamedOptions&) {
  return [] { return std::make_shared<Logistic>(); };
}

}  // namespace psd
