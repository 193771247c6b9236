#pragma once

#include "trainer/model/network.h"

namespace psd {

/// Tells the class of an image; trained with cross-entropy, scored by that and by accuracy. Takes columns
/// "image" and "label", as ByteImages has them.
class Classifier : public Network {
 public:
  /// `imageShape`: [channels, height, width].
  Classifier(std::vector<uint64_t> imageShape, uint64_t classCount);

  /// From images [n, …imageShape] to log-probabilities [n, classCount]. They obey train() and eval().
  std::vector<Layer> layers() override = 0;

  std::vector<ColumnSpec> inputs() const override { return inputs_; }
  std::vector<ColumnSpec> outputInputs() const override { return {inputs_.front()}; }
  /// "scores": what the layers make of the images.
  Tensors outputs(const Tensors& batch) override;
  LossSpec outputLoss() const override;
  torch::Tensor loss(const Tensors& batch) override;
  Score score(const Tensors& batch) override;

 private:
  torch::Tensor forward(const torch::Tensor& images);

  std::vector<ColumnSpec> inputs_;
};

}  // namespace psd
