#pragma once

#include <cstdint>

#include "trainer/model/network.h"

namespace psd {

/// Number of tokens whose logits are in memory at a time while a batch is scored.
inline constexpr int64_t kScoredTokens = 1024;

/// Accumulates the metrics of next-token prediction. A value type.
class LanguageScore {
 public:
  /// `logits`: [tokens, vocabulary].
  void add(const torch::Tensor& logits, const torch::Tensor& targets);
  Score of(int64_t samples) const;

 private:
  double lossSum_ = 0, correct_ = 0, predicted_ = 0;
};

}  // namespace psd
