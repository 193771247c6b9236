#pragma once

#include <cstdint>
#include <vector>

#include "trainer/model/network.h"

namespace psd {

/// Base of language models over a whole vocabulary. The inputs are all but the last token of a sample, the
/// targets all but the first. The loss is the mean cross-entropy per token, in nats. Derived classes provide
/// logits().
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
  /// Logits of the successor of each token: [n, length] → [n · length, vocabulary].
  virtual torch::Tensor logits(const torch::Tensor& tokens) = 0;

  const int64_t vocabulary_;
};

}  // namespace psd
