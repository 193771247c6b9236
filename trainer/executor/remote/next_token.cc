#include <cstdint>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "trainer/executor/remote/class_scores.h"
#include "trainer/executor/remote/loss_list.h"

namespace psd {
namespace {

/// The tokens to predict: all but the first of each sequence.
Result<std::vector<int64_t>> predictedTokens(const NamedTensor& output, const NamedTensor& target) {
  const uint64_t samples = target.shape.front(), length = target.shape.back();
  const bool fits = length > 1 && output.type == ElementType::f32 && output.shape.size() == 3 &&
                    output.shape[0] == samples && output.shape[1] == length - 1 && output.shape[2] > 0;
  if (!fits) {
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("next_token of output {} and {}; expected {}", output.toString(), target.toString(),
                    length > 1 ? fmt::format("f32[{},{},classes]", samples, length - 1)
                               : "sequences of two tokens at least")};
  }
  std::vector<int64_t> predicted;
  predicted.reserve(samples * (length - 1));
  for (uint64_t i = 0; i < samples; i++) {
    const auto sequence = target.values<int64_t>().subspan(i * length, length);
    predicted.insert(predicted.end(), sequence.begin() + 1, sequence.end());
  }
  PSD_RETURN_IF_ERROR(checkLabels(output, predicted));
  return predicted;
}

}  // namespace

Result<LossResult> computeNextToken(const NamedTensor& output, const NamedTensor& target) {
  PSD_ASSIGN_OR_RETURN(const std::vector<int64_t> predicted, predictedTokens(output, target));
  return meanCrossEntropy(output, predicted);
}

Result<Score> scoreSequences(const NamedTensor& output, const NamedTensor& target) {
  PSD_ASSIGN_OR_RETURN(const std::vector<int64_t> predicted, predictedTokens(output, target));
  const ClassSums sums = sumScores(output, predicted);
  const auto tokens = static_cast<double>(predicted.size());
  return Score{target.shape.front(),
               {Metric::of("loss", MetricKind::mean, sums.loss, tokens),
                Metric::of("perplexity", MetricKind::exponential, sums.loss, tokens),
                Metric::of("accuracy", MetricKind::share, sums.right, tokens)}};
}

}  // namespace psd
