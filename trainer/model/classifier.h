#pragma once

#include "trainer/model/network.h"

namespace psd {

/// Tells the class of an image; trained with cross-entropy, scored by that and by accuracy. Takes columns
/// "image" and "label", as ByteImages has them.
class Classifier : public Network {
 public:
  /// `imageShape`: [channels, height, width].
  Classifier(std::vector<uint64_t> imageShape, uint64_t classCount);

  /// [n, …imageShape] → log-probabilities [n, classCount]. Obeys train() and eval().
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;

  std::vector<ColumnSpec> inputs() const override { return inputs_; }
  std::vector<ColumnSpec> outputInputs() const override { return {inputs_.front()}; }
  /// "scores": forward() of the images.
  Tensors outputs(const Tensors& batch) override;
  torch::Tensor loss(const Tensors& batch) override;
  Score score(const Tensors& batch) override;

 private:
  std::vector<ColumnSpec> inputs_;
};

}  // namespace psd
