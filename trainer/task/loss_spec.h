#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// How an output is compared with what is true; each is the mean over the samples, of nextToken over all that
/// are predicted.
enum class LossKind : uint8_t {
  crossEntropy,        ///< of classes: the output is a score of each, the target the right one
  squaredError,        ///< of numbers
  binaryCrossEntropy,  ///< of an output that is the logarithm of odds, and 0 or 1
  hinge,               ///< of a margin, which is to be above 1 for 1, and below −1 for 0
  nextToken,           ///< of a sequence: scores of what comes after each token but the last
};
/// As they stand in files and on the wire; in the order of LossKind.
inline constexpr std::array<std::string_view, 5> kLossKinds{"cross_entropy", "squared_error",
                                                            "binary_cross_entropy", "hinge", "next_token"};

/// The loss of a model whose outputs are computed by one and compared by another. A value type.
struct LossSpec {
  LossKind kind = LossKind::crossEntropy;
  std::string output;  ///< what is compared; empty: the only output that there is
  ColumnSpec target{"label", ElementType::i64, {}, 0};  ///< what it is compared with
  /// An output of f32, a number for each sample, whose mean is added to the loss; empty: none.
  std::string penalty;

  /// For people: "squared_error of 'prediction' and rating f32".
  std::string toString() const;
  bool operator==(const LossSpec&) const = default;
};

/// Whether the target is of a type that this kind compares with, and a penalty beside a named output.
Status checkLoss(const LossSpec& loss);

}  // namespace psd
