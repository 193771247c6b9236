#pragma once

#include <functional>
#include <vector>

#include "common/status/status.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// The loss of a module's outputs, and its gradients with respect to them.
struct LossResult {
  double loss = 0;
  std::vector<NamedTensor> gradients;
};
using RemoteLoss = std::function<Result<LossResult>(const std::vector<NamedTensor>& outputs)>;

}  // namespace psd
