#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/inner_optimizer.h"

namespace psd {

/// An inner optimizer over flat arrays, with its state. Owned by one thread.
class InnerSteps {
 public:
  explicit InnerSteps(const InnerOptimizer& optimizer) : optimizer_(optimizer) {}

  /// Updates the weights by their gradients at this learning rate. The arrays have the same length in every
  /// call.
  void step(double rate, std::span<const float> gradients, std::span<float> weights);

 private:
  void stepSgd(float rate, std::span<const float> gradients, std::span<float> weights);
  void stepAdam(double rate, std::span<const float> gradients, std::span<float> weights);

  const InnerOptimizer optimizer_;
  uint64_t steps_ = 0;           // taken so far
  std::vector<float> momentum_;  // sgd: with momentum; adam: the mean of gradients
  std::vector<float> secondMoment_;
};

}  // namespace psd
