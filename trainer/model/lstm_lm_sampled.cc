#include <algorithm>
#include <cmath>
#include <numeric>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include "trainer/model/language_score.h"
#include "trainer/model/lstm_lm.h"
#include "trainer/model/row_tables.h"

namespace psd {
namespace {

/// The language model with its vocabulary in embedding tables: "embedding" has a row per input token,
/// "output" the weights and, as the last value, the bias per predicted token. Trained with a sampled softmax
/// (Bengio, Senécal 2003; Jean, Cho, Memisevic, Bengio 2015): the target competes only with candidates, which
/// the whole batch shares and which are drawn so that token k (lower numbers are more frequent) has a
/// probability proportional to log((k + 2) / (k + 1)). The logarithm of the expected count is subtracted from
/// the logits, which corrects for the sampling. Scored with the whole vocabulary.
class SampledLstm : public Network {
 public:
  explicit SampledLstm(const LstmOptions& options)
      : options_(options),
        lstm_(register_module(
            "lstm",
            torch::nn::LSTM(torch::nn::LSTMOptions(options.embedding, options.hidden).batch_first(true)))) {}

  std::vector<ColumnSpec> inputs() const override {
    return {{"tokens", ElementType::i64, {ColumnSpec::kAny}, static_cast<uint64_t>(options_.vocabulary)}};
  }

  std::vector<TableSpec> tables() const override {
    const auto outputScale = static_cast<float>(1 / std::sqrt(static_cast<double>(options_.hidden)));
    return {
        {"embedding", static_cast<uint32_t>(options_.embedding), {RowInitial::Kind::uniform, 0.1f, 1}},
        {"output", static_cast<uint32_t>(options_.hidden + 1), {RowInitial::Kind::uniform, outputScale, 2}}};
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose purpose) override {
    const auto tokens = batch.values<int64_t>("tokens");
    const size_t length = tokens.size() / batch.size();
    RowLookup input{"input", kEmbedding, {}}, target{"target", kOutput, {}};
    for (size_t begin = 0; begin < tokens.size(); begin += length) {
      const auto sample = tokens.subspan(begin, length);
      input.ids.insert(input.ids.end(), sample.begin(), sample.end() - 1);
      target.ids.insert(target.ids.end(), sample.begin() + 1, sample.end());
    }
    if (purpose == Purpose::training) {
      return {std::move(input), std::move(target), {"candidate", kOutput, drawCandidates()}};
    }
    std::vector<uint64_t> vocabulary(static_cast<size_t>(options_.vocabulary));
    std::iota(vocabulary.begin(), vocabulary.end(), uint64_t{0});
    return {std::move(input), {"output", kOutput, std::move(vocabulary)}};
  }

  torch::Tensor loss(const Tensors& batch) override {
    const torch::Tensor& tokens = batch.at("tokens");
    const torch::Tensor& target = batch.at("target");
    const torch::Tensor &targetIds = batch.at("target.ids"), &candidateIds = batch.at("candidate.ids");
    const torch::Tensor memory = remember(inputOf(batch, tokens));
    const torch::Tensor wanted = (memory * weights(target)).sum(1) + biases(target) - logExpected(targetIds);
    const torch::Tensor hits = targetIds.unsqueeze(1).eq(candidateIds.unsqueeze(0));
    const torch::Tensor others = (logits(memory, batch.at("candidate")) - logExpected(candidateIds))
                                     .masked_fill(hits, -std::numeric_limits<float>::infinity());
    return torch::cross_entropy_loss(torch::cat({wanted.unsqueeze(1), others}, 1),
                                     torch::zeros_like(targetIds));
  }

  Score score(const Tensors& batch) override {
    const torch::Tensor& all = batch.at("tokens");
    const int64_t samples = std::max<int64_t>(1, kScoredTokens / all.size(1));
    const std::vector<torch::Tensor> inputs = inputOf(batch, all).split(samples), tokens = all.split(samples);
    LanguageScore score;
    for (size_t i = 0; i < tokens.size(); ++i) {
      score.add(logits(remember(inputs[i]), batch.at("output")), tokens[i].slice(1, 1).flatten());
    }
    return score.of(all.size(0));
  }

 private:
  static constexpr uint32_t kEmbedding = 0, kOutput = 1;

  /// [n, length, embedding]
  static torch::Tensor inputOf(const Tensors& batch, const torch::Tensor& tokens) {
    return batch.at("input").unflatten(0, {tokens.size(0), tokens.size(1) - 1});
  }

  /// [n, length, embedding] → [n · length, hidden]
  torch::Tensor remember(const torch::Tensor& input) {
    const torch::Tensor x = torch::dropout(input, options_.dropout, is_training());
    return torch::dropout(std::get<0>(lstm_(x)), options_.dropout, is_training()).flatten(0, 1);
  }

  // For rows of the table "output".
  static torch::Tensor weights(const torch::Tensor& rows) { return rows.slice(1, 0, -1); }
  static torch::Tensor biases(const torch::Tensor& rows) { return rows.select(1, -1); }
  static torch::Tensor logits(const torch::Tensor& memory, const torch::Tensor& rows) {
    return torch::addmm(biases(rows), memory, weights(rows).t());
  }

  /// The distinct drawn tokens, sorted.
  std::vector<uint64_t> drawCandidates() const {
    const double range = std::log1p(static_cast<double>(options_.vocabulary));
    const torch::Tensor draws = torch::rand({options_.candidates}, torch::kFloat64).mul_(range).exp_();
    std::vector<uint64_t> candidates;
    for (int64_t i = 0; i < draws.size(0); ++i) {  // 1 … vocabulary + 1, rounding included
      const auto token = static_cast<int64_t>(draws.data_ptr<double>()[i]) - 1;
      candidates.push_back(static_cast<uint64_t>(std::clamp<int64_t>(token, 0, options_.vocabulary - 1)));
    }
    std::ranges::sort(candidates);
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    return candidates;
  }

  /// The logarithms of the probabilities of being among the candidates.
  torch::Tensor logExpected(const torch::Tensor& ids) const {
    const torch::Tensor chance = ids.to(torch::kFloat64)
                                     .add_(1)
                                     .reciprocal_()
                                     .log1p_()
                                     .div_(std::log1p(static_cast<double>(options_.vocabulary)));
    const torch::Tensor missed = chance.neg().log1p_().mul_(static_cast<double>(options_.candidates));
    return missed.expm1_().neg_().log_().to(torch::kFloat32);
  }

  const LstmOptions options_;
  torch::nn::LSTM lstm_;
};

}  // namespace

std::shared_ptr<Network> makeSampledLstm(const LstmOptions& options) {
  return std::make_shared<SampledLstm>(options);
}

}  // namespace psd
