#pragma once

#include "trainer/model/network.h"

namespace psd {

/// An image classifier, trained with cross-entropy and scored by cross-entropy and accuracy. Takes the
/// columns "image" and "label" of ByteImages.
class Classifier : public Network {
 public:
  /// `imageShape`: [channels, height, width].
  Classifier(std::vector<uint64_t> imageShape, uint64_t classCount);

  /// Layers from images [n, …imageShape] to log-probabilities [n, classCount]. They honor train() and eval().
  std::vector<Layer> layers() override = 0;

  std::vector<ColumnSpec> inputs() const override { return inputs_; }
  std::vector<ColumnSpec> outputInputs() const override { return {inputs_.front()}; }
  /// "scores": the output of the layers.
  Tensors outputs(const Tensors& batch) override;
  LossSpec outputLoss() const override;
  torch::Tensor loss(const Tensors& batch) override;
  Score score(const Tensors& batch) override;

 private:
  torch::Tensor forward(const torch::Tensor& images);

  std::vector<ColumnSpec> inputs_;
};

}  // namespace psd
