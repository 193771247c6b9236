#pragma once

#include "trainer/model/network.h"

namespace psd {

/// A model of the probability that a label is 1, not 0. The loss is the mean cross-entropy in nats, without
/// any penalty, which is the optimizer's. Scored by loss, AUC and calibration: the mean probability divided
/// by the mean label. The last column of inputs() is the label, "label". Owned by one thread.
class BinaryClassifier : public Network {
 public:
  torch::Tensor loss(const Tensors& batch) override;
  std::vector<ColumnSpec> outputInputs() const override;
  /// "logits", [samples].
  Tensors outputs(const Tensors& batch) override;
  LossSpec outputLoss() const override;
  Score score(const Tensors& batch) override;

 protected:
  /// [samples]
  virtual torch::Tensor logits(const Tensors& batch) = 0;
};

}  // namespace psd
