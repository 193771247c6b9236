#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/inner_optimizer.h"

namespace psd {

/// The steps of an inner optimizer over flat arrays, with the state that it keeps from one to the next. Owned
/// by one thread.
class InnerSteps {
 public:
  explicit InnerSteps(const InnerOptimizer& optimizer) : optimizer_(optimizer) {}

  /// Changes the weights by their gradients at this rate. The arrays have the same length in every call.
  void step(double rate, std::span<const float> gradients, std::span<float> weights);

 private:
  void stepSgd(float rate, std::span<const float> gradients, std::span<float> weights);
  void stepAdam(double rate, std::span<const float> gradients, std::span<float> weights);

  const InnerOptimizer optimizer_;
  uint64_t steps_ = 0;           // that were taken
  std::vector<float> momentum_;  // sgd: with momentum; adam: the mean of gradients
  std::vector<float> secondMoment_;
};

}  // namespace psd
