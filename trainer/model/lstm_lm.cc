#include "trainer/model/lstm_lm.h"

#include <memory>

#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "trainer/model/language_network.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

/// A language model: embedding, one LSTM layer with a zero initial state, and a linear layer with a softmax
/// over the whole vocabulary. 9,266,960 parameters with the default options.
class LstmLanguageModel : public LanguageNetwork {
 public:
  explicit LstmLanguageModel(const LstmOptions& options)
      : LanguageNetwork(options.vocabulary),
        options_(options),
        embedding_(register_module("embedding", torch::nn::Embedding(options.vocabulary, options.embedding))),
        lstm_(register_module(
            "lstm",
            torch::nn::LSTM(torch::nn::LSTMOptions(options.embedding, options.hidden).batch_first(true)))),
        output_(register_module("output", torch::nn::Linear(options.hidden, options.vocabulary))) {
    torch::nn::init::uniform_(embedding_->weight, -0.1, 0.1);
  }

 private:
  torch::Tensor logits(const torch::Tensor& tokens) override {
    torch::Tensor x = embedding_(tokens);
    x = std::get<0>(lstm_(torch::dropout(x, options_.dropout, is_training())));
    return output_(torch::dropout(x, options_.dropout, is_training()).flatten(0, 1));
  }

  LstmOptions options_;
  torch::nn::Embedding embedding_;
  torch::nn::LSTM lstm_;
  torch::nn::Linear output_;
};

}  // namespace

NetworkMaker readLstmLm(NamedOptions& given) {
  constexpr uint64_t kWidthMax = 1 << 16, kVocabularyMax = 100'000'000, kCandidatesMax = 1 << 20;
  LstmOptions options;
  options.embedding = static_cast<int64_t>(given.count("embedding", 256, 1, kWidthMax));
  options.hidden = static_cast<int64_t>(given.count("hidden", 512, 1, kWidthMax));
  options.vocabulary = static_cast<int64_t>(given.count("vocabulary", 10'000, 2, kVocabularyMax));
  options.dropout = given.number("dropout", 0, 0, 0.9);
  options.candidates = static_cast<int64_t>(given.count("candidates", 0, 0, kCandidatesMax));
  if (options.candidates > 0) return [options] { return makeSampledLstm(options); };
  return [options] { return std::make_shared<LstmLanguageModel>(options); };
}

}  // namespace psd
