#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/model_layout.h"
#include "common/types/model_spec.h"
#include "trainer/dataset/dataset.h"

namespace psd::trials {

/// 784 inputs, one hidden layer (ReLU), 10 classes, cross-entropy: implemented by hand, so that trials of
/// policies need no LibTorch and a step takes a millisecond. Parameters and gradients are flat, in the order
/// of ModelLayout(spec()). Owned by one thread.
class DigitsNetwork {
 public:
  explicit DigitsNetwork(size_t hidden);

  const ModelSpec& spec() const { return spec_; }
  uint64_t elementCount() const { return layout_.totalElements(); }
  /// Normally distributed with a deviation of √(2 / inputs); biases 0 (He et al. 2015).
  std::vector<float> initialValues(uint64_t seed) const;

  /// Fills `gradient` with that of the mean loss, and returns the mean loss.
  double gradient(std::span<const float> parameters, const Batch& batch, std::span<float> gradient);

  struct Score {
    double loss = 0;  ///< mean
    double accuracy = 0;
  };
  Score score(std::span<const float> parameters, const Batch& batch);

 private:
  static constexpr size_t kPixels = 28 * 28;
  static constexpr size_t kClasses = 10;
  enum Tensor { kWeight1, kBias1, kWeight2, kBias2 };

  uint64_t begin(Tensor tensor) const { return layout_.places()[tensor].begin; }
  /// Fills hidden_ and probabilities_ for one image.
  void forward(const float* parameters, const float* image);

  std::vector<float> hidden_, errorHidden_;  // for one image
  ModelSpec spec_;
  ModelLayout layout_;
  float probabilities_[kClasses] = {};
};

}  // namespace psd::trials
