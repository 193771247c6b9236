#pragma once

#include <cstdint>
#include <vector>

#include "trainer/model/network.h"

namespace psd {

/// A language model over a whole vocabulary. Of a sample's tokens it is given all but the last, and predicts
/// all but the first. The loss is the mean cross-entropy of a token, in nats. Whoever derives from it says
/// what it predicts.
class LanguageNetwork : public Network {
 public:
  explicit LanguageNetwork(int64_t vocabulary) : vocabulary_(vocabulary) {}

  std::vector<ColumnSpec> inputs() const override;
  torch::Tensor loss(const Tensors& batch) override;
  std::vector<ColumnSpec> outputInputs() const override { return inputs(); }
  /// "logits", [samples, length − 1, vocabulary].
  Tensors outputs(const Tensors& batch) override;
  LossSpec outputLoss() const override;
  Score score(const Tensors& batch) override;

 private:
  /// Of what comes after each token: [n, length] → [n · length, vocabulary].
  virtual torch::Tensor logits(const torch::Tensor& tokens) = 0;

  const int64_t vocabulary_;
};

}  // namespace psd
