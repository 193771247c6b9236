#pragma once

#include <torch/nn/module.h>

namespace psd {

/// A classifier as LibTorch sees it. Its named parameters, in order, become the ModelSpec. Includes
/// LibTorch: only the files of this folder that build networks include it.
class Network : public torch::nn::Module {
 public:
  /// [n, …inputShape] → log-probabilities [n, classCount]. Obeys train() and eval().
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

}  // namespace psd
