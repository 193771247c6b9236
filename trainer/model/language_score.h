#pragma once

#include <cstdint>

#include "trainer/model/network.h"

namespace psd {

/// Logits of so many tokens at a time are in memory while a batch is scored.
inline constexpr int64_t kScoredTokens = 1024;

/// Adds up how well the next token was predicted. A value type.
class LanguageScore {
 public:
  /// `logits`: [tokens, vocabulary].
  void add(const torch::Tensor& logits, const torch::Tensor& targets);
  Score of(int64_t samples) const;

 private:
  double lossSum_ = 0, correct_ = 0, predicted_ = 0;
};

}  // namespace psd
