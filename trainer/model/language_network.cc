#include "trainer/model/language_network.h"

#include <algorithm>

#include <torch/nn/functional/loss.h>

#include "trainer/model/language_score.h"

namespace psd {
namespace {

torch::Tensor given(const torch::Tensor& tokens) { return tokens.slice(1, 0, -1); }
torch::Tensor targets(const torch::Tensor& tokens) { return tokens.slice(1, 1).flatten(); }

}  // namespace

std::vector<ColumnSpec> LanguageNetwork::inputs() const {
  return {{"tokens", ElementType::i64, {ColumnSpec::kAny}, static_cast<uint64_t>(vocabulary_)}};
}

torch::Tensor LanguageNetwork::loss(const Tensors& batch) {
  const torch::Tensor& tokens = batch.at("tokens");
  return torch::cross_entropy_loss(logits(given(tokens)), targets(tokens));
}

Tensors LanguageNetwork::outputs(const Tensors& batch) {
  const torch::Tensor& tokens = batch.at("tokens");
  if (tokens.size(1) < 2) throw NetworkError("a sequence of fewer than two tokens has none to predict");
  Tensors outputs;
  outputs.emplace("logits", logits(given(tokens)).unflatten(0, {tokens.size(0), tokens.size(1) - 1}));
  return outputs;
}

LossSpec LanguageNetwork::outputLoss() const { return {LossKind::nextToken, "logits", inputs().front(), ""}; }

Score LanguageNetwork::score(const Tensors& batch) {
  const torch::Tensor& all = batch.at("tokens");
  LanguageScore score;
  for (const torch::Tensor& tokens : all.split(std::max<int64_t>(1, kScoredTokens / all.size(1)))) {
    score.add(logits(given(tokens)), targets(tokens));
  }
  return score.of(all.size(0));
}

}  // namespace psd
