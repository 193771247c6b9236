#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "trainer/model/language_network.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

struct GptOptions {
  int64_t layers = 0, width = 0, heads = 0, context = 0, vocabulary = 0;
  double dropout = 0;
};

/// A transformer block with pre-normalisation: causal attention, then a perceptron, each with a residual
/// connection.
class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptOptions& options)
      : options_(options),
        attentionNorm_(register_module("attention_norm", norm())),
        attention_(register_module("attention", torch::nn::Linear(options.width, 3 * options.width))),
        joined_(register_module("joined", torch::nn::Linear(options.width, options.width))),
        hiddenNorm_(register_module("hidden_norm", norm())),
        hidden_(register_module("hidden", torch::nn::Linear(options.width, 4 * options.width))),
        output_(register_module("output", torch::nn::Linear(4 * options.width, options.width))) {
    // Scaled so that the residual contributions do not grow with the number of blocks (Radford et al. 2019).
    const torch::NoGradGuard noGradients;
    for (const auto& last : {joined_, output_})
      last->weight.div_(std::sqrt(2. * static_cast<double>(options.layers)));
  }

  /// [n, length, width] → [n, length, width]
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor x = input + drop(joined_(attend(attentionNorm_(input))));
    return x + drop(output_(torch::gelu(hidden_(hiddenNorm_(x)))));
  }

 private:
  torch::nn::LayerNorm norm() const {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options_.width}));
  }
  torch::Tensor drop(const torch::Tensor& x) const {
    return torch::dropout(x, options_.dropout, is_training());
  }

  torch::Tensor attend(const torch::Tensor& x) {
    // [n, length, 3 · width] → 3 × [n, heads, length, width / heads]
    const std::vector<torch::Tensor> parts =
        attention_(x)
            .unflatten(2, {3, options_.heads, options_.width / options_.heads})
            .permute({2, 0, 3, 1, 4})
            .unbind(0);
    const torch::Tensor seen = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], {}, is_training() ? options_.dropout : 0, /*is_causal=*/true);
    return seen.transpose(1, 2).flatten(2);
  }

  const GptOptions options_;
  torch::nn::LayerNorm attentionNorm_;
  torch::nn::Linear attention_, joined_;
  torch::nn::LayerNorm hiddenNorm_;
  torch::nn::Linear hidden_, output_;
};

/// A language model: a transformer with pre-normalisation, learned positions and an output layer tied to the
/// embedding (GPT-2, Radford et al. 2019). 842,496 parameters with the default options.
class Gpt : public LanguageNetwork {
 public:
  explicit Gpt(const GptOptions& options)
      : LanguageNetwork(options.vocabulary),
        options_(options),
        tokens_(register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width))),
        positions_(register_module("positions", torch::nn::Embedding(options.context, options.width))) {
    for (const auto& table : {tokens_, positions_}) torch::nn::init::normal_(table->weight, 0, 0.02);
    for (int64_t i = 0; i < options.layers; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<GptBlock>(options)));
    }
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  }

 private:
  torch::Tensor logits(const torch::Tensor& tokens) override {
    if (tokens.size(1) > options_.context) {
      throw NetworkError("the context of gpt is " + std::to_string(options_.context) +
                         " tokens, but samples have " + std::to_string(tokens.size(1)) +
                         "; expected a larger context or a smaller length of the data");
    }
    torch::Tensor x = tokens_(tokens) + positions_->weight.slice(0, 0, tokens.size(1));
    x = torch::dropout(x, options_.dropout, is_training());
    for (const auto& block : blocks_) x = block->forward(x);
    return torch::linear(norm_(x), tokens_->weight).flatten(0, 1);
  }

  const GptOptions options_;
  torch::nn::Embedding tokens_, positions_;
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
};

}  // namespace

NetworkMaker readGpt(NamedOptions& given) {
  constexpr uint64_t kWidthMax = 1 << 14, kVocabularyMax = 100'000'000, kContextMax = 1 << 16;
  GptOptions options;
  options.layers = static_cast<int64_t>(given.count("layers", 4, 1, 256));
  options.width = static_cast<int64_t>(given.count("width", 128, 1, kWidthMax));
  options.heads = static_cast<int64_t>(given.count("heads", 4, 1, 256));
  options.context = static_cast<int64_t>(given.count("context", 128, 1, kContextMax));
  options.vocabulary = static_cast<int64_t>(given.count("vocabulary", 256, 2, kVocabularyMax));
  options.dropout = given.number("dropout", 0, 0, 0.9);
  return [options]() -> std::shared_ptr<Network> {
    if (options.width % options.heads != 0) {
      throw NetworkError("gpt: width " + std::to_string(options.width) + " is not a multiple of heads, " +
                         std::to_string(options.heads));
    }
    return std::make_shared<Gpt>(options);
  };
}

}  // namespace psd
