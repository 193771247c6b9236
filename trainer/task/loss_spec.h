#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// How an output is compared with its target; each is the mean over the samples, nextToken over all predicted
/// tokens.
enum class LossKind : uint8_t {
  crossEntropy,        ///< the output holds a score per class, the target is the class
  squaredError,        ///< output and target are numbers
  binaryCrossEntropy,  ///< the output is a logit, the target 0 or 1
  hinge,               ///< the output is a margin: at least 1 for target 1, at most −1 for 0
  nextToken,           ///< sequences: scores of the successor of each token but the last
};
/// Names in files and on the wire, in the order of LossKind.
inline constexpr std::array<std::string_view, 5> kLossKinds{"cross_entropy", "squared_error",
                                                            "binary_cross_entropy", "hinge", "next_token"};

/// The loss of a model whose outputs one process computes and another compares. A value type.
struct LossSpec {
  LossKind kind = LossKind::crossEntropy;
  std::string output;                                   ///< the compared output; empty: the only output
  ColumnSpec target{"label", ElementType::i64, {}, 0};  ///< the column it is compared with
  /// An f32 output, one number per sample, whose mean is added to the loss; empty: none.
  std::string penalty;

  /// Human-readable: "squared_error of 'prediction' and rating f32".
  std::string toString() const;
  bool operator==(const LossSpec&) const = default;
};

/// Checks that the target's type fits the kind, and that a penalty comes with a named output.
Status checkLoss(const LossSpec& loss);

}  // namespace psd
