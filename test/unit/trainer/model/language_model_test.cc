// lstm_lm, tested through the Model interface.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/text.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

using Catch::Matchers::Contains;

std::unique_ptr<Model> lstm(const std::string& options) {
  const auto choice = chooseModel("lstm_lm" + options);
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {1, Rank{0}, Device{}, 1});
  PSD_REQUIRE_OK(model);
  return std::move(model).value();
}

/// `size` sequences of tokens below `vocabulary`.
Batch tokens(size_t size, uint64_t length, uint32_t vocabulary, uint64_t seed = 1) {
  Batch batch;
  batch.reshape({{"tokens", ElementType::i64, {length + 1}, vocabulary}}, size);
  Random random(seed);
  for (int64_t& token : batch.values<int64_t>("tokens")) token = random.below(vocabulary);
  return batch;
}

constexpr uint32_t kWords = 7;
constexpr double kSurprise = 0.1;

/// Each word is, with some exceptions, the successor of the one before the last: the last one alone says
/// nothing about the next.
std::string interleavedText(size_t words) {
  Random random(11);
  std::vector<uint32_t> numbers{0, 3};
  while (numbers.size() < words) {
    const bool surprises = random.below(1000) < 1000 * kSurprise;
    numbers.push_back(surprises ? random.below(kWords) : (numbers[numbers.size() - 2] + 1) % kWords);
  }
  std::string text;
  for (const uint32_t number : numbers) text += std::string("w") + std::to_string(number) + " ";
  return text;
}

/// Adam (Kingma, Ba 2015) over flat arrays.
class Adam {
 public:
  explicit Adam(size_t size) : mean_(size), square_(size) {}
  void step(std::span<float> weights, std::span<const float> gradient) {
    ++steps_;
    for (size_t i = 0; i < weights.size(); ++i) {
      mean_[i] = 0.9 * mean_[i] + 0.1 * gradient[i];
      square_[i] = 0.999 * square_[i] + 0.001 * gradient[i] * gradient[i];
      const double mean = mean_[i] / (1 - std::pow(0.9, steps_));
      weights[i] -=
          static_cast<float>(0.01 * mean / (std::sqrt(square_[i] / (1 - std::pow(0.999, steps_))) + 1e-8));
    }
  }

 private:
  int steps_ = 0;
  std::vector<double> mean_, square_;
};

}  // namespace

TEST_CASE("the language model has PyTorch's tensors, of the sizes that the options set") {
  CHECK(lstm("")->spec().parameterCount() == 9'266'960);
  const auto small = lstm(":embedding=3,hidden=5,vocabulary=11");
  CHECK(small->spec().name == "lstm_lm");
  std::vector<std::string> names;
  for (const TensorSpec& each : small->spec().tensors) names.push_back(each.toString());
  CHECK(names == std::vector<std::string>{"embedding.weight f32[11,3]", "lstm.weight_ih_l0 f32[20,3]",
                                          "lstm.weight_hh_l0 f32[20,5]", "lstm.bias_ih_l0 f32[20]",
                                          "lstm.bias_hh_l0 f32[20]", "output.weight f32[11,5]",
                                          "output.bias f32[11]"});
  CHECK(describeColumns(small->inputs()) == "tokens i64[any] below 11");
}

TEST_CASE("wrong options of a model are named") {
  CHECK_THAT(chooseModel("lstm_lm:hidden=0").message(),
             Contains("model 'lstm_lm': hidden must be a whole number from 1"));
  CHECK_THAT(chooseModel("lstm_lm:layers=2").message(), Contains("'layers' is not an option; expected"));
  CHECK(chooseModel("mlp:hidden=3").message() == "model 'mlp': 'hidden' is not an option; there are none");
  CHECK(chooseModel("lstm_lm:hidden=8")->spec ==
        "lstm_lm:embedding=256,hidden=8,vocabulary=10000,dropout=0,candidates=0");
}

TEST_CASE("perplexity is that of the softmax over the whole vocabulary") {
  const auto model = lstm(":embedding=4,hidden=6,vocabulary=50");
  std::fill(model->parameters().begin(), model->parameters().end(), 0.f);
  const Batch batch = tokens(3, 10, 50);
  auto score = model->score(batch);
  PSD_REQUIRE_OK(score);
  CHECK(score->samples == 3);
  CHECK(std::abs(score->loss() - std::log(50.0)) < 1e-6);
  CHECK(std::abs(score->value("perplexity") - 50) < 1e-4);

  // The output's bias makes word 7 likelier: e : 1 for each of the others.
  const TensorPlace bias = ModelLayout(model->spec()).places().back();
  model->parameters()[bias.begin + 7] = 1;
  score = model->score(batch);
  PSD_REQUIRE_OK(score);
  const auto all = batch.values<int64_t>("tokens");
  double sevens = 0;
  for (size_t i = 0; i < all.size(); ++i) sevens += i % 11 != 0 && all[i] == 7;
  CHECK(std::abs(score->loss() - (std::log(49 + std::exp(1.0)) - sevens / 30)) < 1e-6);
  CHECK(score->value("accuracy") == sevens / 30);
  CHECK(std::abs(model->computeGradients(batch).value() - score->loss()) < 1e-6);
}

TEST_CASE("gradients of the language model are the slopes of the loss in every tensor") {
  const auto model = lstm(":embedding=5,hidden=7,vocabulary=13");
  const Batch batch = tokens(4, 9, 13);
  PSD_REQUIRE_OK(model->computeGradients(batch));
  const std::vector<float> start(model->parameters().begin(), model->parameters().end());
  const ModelLayout layout(model->spec());
  for (size_t t = 0; t < layout.places().size(); ++t) {
    INFO(model->spec().tensors[t].name);
    const TensorPlace& place = layout.places()[t];
    const auto gradient = model->gradients().subspan(place.begin, place.count);
    const double norm =
        std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
    REQUIRE(norm > 1e-4);
    constexpr double kStep = 0.02;
    const auto lossAt = [&](double step) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        model->parameters()[place.begin + i] =
            start[place.begin + i] + static_cast<float>(step / norm) * gradient[i];
      }
      return model->score(batch)->loss();
    };
    const double slope = (lossAt(kStep) - lossAt(-kStep)) / (2 * kStep);
    CHECK(std::abs(slope - norm) < 0.01 * norm + 2e-5);
    lossAt(0);
  }
}

TEST_CASE("scores of parts of a batch add up to that of the whole, which is scored in pieces") {
  const auto model = lstm(":embedding=5,hidden=7,vocabulary=13");
  const auto whole = model->score(tokens(100, 40, 13));  // 4,000 tokens
  PSD_REQUIRE_OK(whole);
  const Batch all = tokens(100, 40, 13);
  Score sum;
  for (size_t i = 0; i < 100; ++i) {
    Batch one = tokens(1, 40, 13);
    std::copy_n(all.values<int64_t>("tokens").begin() + static_cast<ptrdiff_t>(i * 41), 41,
                one.values<int64_t>("tokens").begin());
    sum += *model->score(one);
  }
  CHECK(sum.samples == whole->samples);
  CHECK(std::abs(sum.loss() - whole->loss()) < 1e-5);
  CHECK(sum.value("accuracy") == whole->value("accuracy"));
  CHECK(sum.value("perplexity") == std::exp(sum.loss()));
}

TEST_CASE("dropout is applied in training if requested") {
  const Batch batch = tokens(2, 9, 13);
  const auto differs = [&](const std::string& dropout) {
    const auto model = lstm(":embedding=5,hidden=7,vocabulary=13,dropout=" + dropout);
    return std::abs(model->computeGradients(batch).value() - model->score(batch)->loss()) > 1e-4;
  };
  CHECK(differs("0.5"));
  CHECK_FALSE(differs("0"));
}

TEST_CASE("the language model learns what requires memory") {
  const testing::TempDir folder;
  testing::writeFile(folder.file("text"), interleavedText(6000));
  const auto train = openText(folder.file("text") + ":length=20", Split::train);
  const auto test = openText(folder.file("text") + ":length=20", Split::test);
  PSD_REQUIRE_OK(train);
  PSD_REQUIRE_OK(test);
  const auto model = lstm(":embedding=8,hidden=24,vocabulary=8");
  const auto testLoss = [&] {
    std::vector<uint32_t> indices((*test)->sampleCount());
    std::iota(indices.begin(), indices.end(), 0u);
    Batch batch;
    PSD_REQUIRE_OK((*test)->fill(indices, batch));
    return model->score(batch)->loss();
  };
  // Of the words alone, and given the last one: they are equally likely.
  const double unigramEntropy = std::log(double{kWords});
  CHECK(testLoss() > 0.95 * unigramEntropy);

  Adam adam(model->parameters().size());
  Random random(2);
  Batch batch;
  for (int step = 0; step < 400; ++step) {
    std::vector<uint32_t> indices(16);
    for (uint32_t& index : indices) index = random.below(static_cast<uint32_t>((*train)->sampleCount()));
    PSD_REQUIRE_OK((*train)->fill(indices, batch));
    PSD_REQUIRE_OK(model->computeGradients(batch));
    adam.step(model->parameters(), model->gradients());
  }
  // With the rule known the entropy is 0.45, and 0.52 with a sample's first word, which follows from nothing.
  CHECK(testLoss() < 0.4 * unigramEntropy);
}

}  // namespace psd
