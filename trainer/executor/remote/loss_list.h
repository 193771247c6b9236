#pragma once

#include <span>
#include <vector>

#include "common/status/status.h"
#include "trainer/executor/remote/loss_result.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"
#include "trainer/task/score.h"

// Losses and scores that a trainer computes from outputs, in host memory and without LibTorch.

namespace psd {

/// One kind of loss. The first extent of the target is the number of samples, at least one; its type has
/// passed checkLoss().
struct LossEntry {
  LossKind kind;
  /// The mean loss, and its gradient with respect to the output. invalidArgument: the output's shape does not
  /// match the samples, or the target is out of range.
  Result<LossResult> (*compute)(const NamedTensor& output, const NamedTensor& target);
  /// The loss, first, and further metrics.
  Result<Score> (*score)(const NamedTensor& output, const NamedTensor& target);
};

/// All losses, in the order of LossKind. To add one: a file here, a line in loss_list.cc, and one in
/// LossKind.
std::span<const LossEntry> lossList();

/// The loss of a module's outputs, including its penalty, and the gradients with respect to the outputs.
/// nonFinite: the loss is not finite.
Result<LossResult> computeLoss(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                               const NamedTensor& target);
/// The loss, first, and further metrics.
Result<Score> scoreOutputs(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                           const NamedTensor& target);

}  // namespace psd
