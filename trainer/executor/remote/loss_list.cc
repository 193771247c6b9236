#include "trainer/executor/remote/loss_list.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {

// One per file of this folder.
Result<LossResult> computeCrossEntropy(const NamedTensor& output, const NamedTensor& target);
Result<Score> scoreClasses(const NamedTensor& output, const NamedTensor& target);
Result<LossResult> computeSquaredError(const NamedTensor& output, const NamedTensor& target);
Result<Score> scoreRegression(const NamedTensor& output, const NamedTensor& target);
Result<LossResult> computeBinaryCrossEntropy(const NamedTensor& output, const NamedTensor& target);
Result<Score> scoreLogits(const NamedTensor& output, const NamedTensor& target);
Result<LossResult> computeHinge(const NamedTensor& output, const NamedTensor& target);
Result<Score> scoreMargins(const NamedTensor& output, const NamedTensor& target);
Result<LossResult> computeNextToken(const NamedTensor& output, const NamedTensor& target);
Result<Score> scoreSequences(const NamedTensor& output, const NamedTensor& target);

namespace {

/// The outputs that a loss takes. Does not own them.
struct LossOutputs {
  const NamedTensor* compared = nullptr;
  const NamedTensor* penalty = nullptr;  ///< null if there is none
};

Result<const NamedTensor*> findOutput(const std::vector<NamedTensor>& outputs, const std::string& name) {
  const bool only = name.empty() && outputs.size() == 1;
  const auto found = only ? outputs.begin() : std::ranges::find(outputs, name, &NamedTensor::name);
  if (found != outputs.end()) return &*found;
  return Error{ErrorCode::invalidArgument,
               fmt::format("the module gives {}; expected {}",
                           outputs.empty() ? "no output"
                                           : joined(outputs, ", ",
                                                    [](const NamedTensor& each) { return each.toString(); }),
                           name.empty() ? "one output, or a module whose loss names one"
                                        : fmt::format("'{}', of which its loss is", printable(name, 60)))};
}

Result<LossOutputs> selectOutputs(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                                  const NamedTensor& target) {
  PSD_RETURN_IF_ERROR(checkLoss(loss));
  PSD_RETURN_IF_ERROR(checkInputs(std::span(&target, 1), std::span(&loss.target, 1)));
  LossOutputs taken;
  PSD_ASSIGN_OR_RETURN(taken.compared, findOutput(outputs, loss.output));
  if (loss.penalty.empty()) return taken;
  PSD_ASSIGN_OR_RETURN(taken.penalty, findOutput(outputs, loss.penalty));
  const uint64_t samples = target.shape.front();
  if (taken.penalty->type == ElementType::f32 && taken.penalty->elementCount() == samples) return taken;
  return Error{ErrorCode::invalidArgument,
               fmt::format("the penalty is {}; expected f32[{}]", taken.penalty->toString(), samples)};
}

double sumOf(const NamedTensor& tensor) {
  const std::span<const float> values = tensor.values<float>();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

const LossEntry& entryOf(LossKind kind) { return lossList()[static_cast<size_t>(kind)]; }

}  // namespace

std::span<const LossEntry> lossList() {
  static constexpr LossEntry kLosses[] = {
      {LossKind::crossEntropy, computeCrossEntropy, scoreClasses},
      {LossKind::squaredError, computeSquaredError, scoreRegression},
      {LossKind::binaryCrossEntropy, computeBinaryCrossEntropy, scoreLogits},
      {LossKind::hinge, computeHinge, scoreMargins},
      {LossKind::nextToken, computeNextToken, scoreSequences},
  };
  static_assert(std::size(kLosses) == kLossKinds.size());
  return kLosses;
}

Result<LossResult> computeLoss(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                               const NamedTensor& target) {
  PSD_ASSIGN_OR_RETURN(const LossOutputs taken, selectOutputs(loss, outputs, target));
  PSD_ASSIGN_OR_RETURN(LossResult result, entryOf(loss.kind).compute(*taken.compared, target));
  if (taken.penalty != nullptr) {
    const auto samples = static_cast<double>(target.shape.front());
    result.loss += sumOf(*taken.penalty) / samples;
    NamedTensor gradient = *taken.penalty;
    std::ranges::fill(gradient.values<float>(), static_cast<float>(1 / samples));
    result.gradients.push_back(std::move(gradient));
  }
  if (std::isfinite(result.loss)) return result;
  return Error{ErrorCode::nonFinite, "the loss is not finite; was the learning rate too high?"};
}

Result<Score> scoreOutputs(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                           const NamedTensor& target) {
  PSD_ASSIGN_OR_RETURN(const LossOutputs taken, selectOutputs(loss, outputs, target));
  PSD_ASSIGN_OR_RETURN(Score score, entryOf(loss.kind).score(*taken.compared, target));
  if (taken.penalty != nullptr) score.metrics.front().sum += sumOf(*taken.penalty);
  return score;
}

}  // namespace psd
