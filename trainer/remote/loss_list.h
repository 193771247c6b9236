#pragma once

#include <span>
#include <vector>

#include "common/status/status.h"
#include "trainer/remote/loss_result.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"
#include "trainer/task/score.h"

// What a trainer computes of outputs by itself, in host memory and without LibTorch.

namespace psd {

/// One kind of loss. The target has as many samples as it is long, at least one, and is of the type that
/// checkLoss() wants.
struct LossEntry {
  LossKind kind;
  /// The mean loss, and its gradient with respect to the output. invalidArgument: the output is not of these
  /// samples, or the target not in range.
  Result<LossResult> (*compute)(const NamedTensor& output, const NamedTensor& target);
  /// Loss, first, and what else is scored.
  Result<Score> (*score)(const NamedTensor& output, const NamedTensor& target);
};

/// In the order of LossKind. A new one is one file, a line in loss_list.cc, and one in LossKind.
std::span<const LossEntry> lossList();

/// The loss of a module's outputs, its penalty included, and its gradients with respect to them. nonFinite:
/// it is not.
Result<LossResult> computeLoss(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                               const NamedTensor& target);
/// Loss, first, and what else is scored.
Result<Score> scoreOutputs(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                           const NamedTensor& target);

}  // namespace psd
