#pragma once

#include <cstdint>
#include <memory>

#include "trainer/model/network.h"

namespace psd {

struct LstmOptions {
  int64_t vocabulary = 0, embedding = 0, hidden = 0;
  double dropout = 0;
  int64_t candidates = 0;  ///< of the sampled softmax; 0: the whole vocabulary, in dense tensors
};

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

/// The language model with an embedding table for its input and another one for its output.
std::shared_ptr<Network> makeSampledLstm(const LstmOptions& options);

}  // namespace psd
