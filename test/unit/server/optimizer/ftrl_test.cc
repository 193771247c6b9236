// FTRL-Proximal and its group lasso: the steps against a plain loop, and what must hold of every state.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/optimizer/optimizer_config.h"
#include "server/store/derived_weights.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/row_model.h"

namespace psd::ftrl_test {
namespace {

using Catch::Matchers::Contains;
using testing::makeTable;
using testing::Random;

Result<Optimizer> parse(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text);
  ObjectReader reader(json);
  Optimizer optimizer = readOptimizer(reader, OptimizerUse::rows);
  PSD_RETURN_IF_ERROR(reader.finish());
  return optimizer;
}

Optimizer mustParse(const std::string& text) {
  auto optimizer = parse(text);
  PSD_REQUIRE_OK(optimizer);
  return *optimizer;
}

std::string whyNot(const std::string& text) {
  const auto optimizer = parse(text);
  return optimizer.ok() ? "accepted" : optimizer.message();
}

/// Options of both types, and the optimizers that they make.
struct Options {
  double alpha = 0.1, beta = 1, l1 = 0, l2 = 0, groupL1 = 0, start = 0;

  Optimizer ftrl() const {
    Ftrl algorithm;
    fill(algorithm);
    return {algorithm, alpha, {}};
  }
  Optimizer grouped() const {
    GroupFtrl algorithm;
    fill(algorithm);
    algorithm.groupL1 = groupL1;
    return {algorithm, alpha, {}};
  }

 private:
  void fill(FtrlBase& algorithm) const {
    algorithm.beta = beta;
    algorithm.l1 = l1;
    algorithm.l2 = l2;
    algorithm.initialAccumulatorValue = start;
  }
};

/// Algorithm 1 of McMahan et al. 2013 in double, with a group lasso of all coordinates together. The weights
/// are made only when they are needed, as there.
struct PlainFtrl {
  Options options;
  std::vector<double> z, n, largest;  // of |z| so far

  PlainFtrl(const Options& given, size_t size)
      : options(given), z(size), n(size, given.start), largest(size) {}

  std::vector<double> weights() const {
    std::vector<double> w(z.size());
    double norm = 0;
    for (size_t i = 0; i < z.size(); i++) {
      const double sign = z[i] < 0 ? -1 : 1;
      w[i] = std::abs(z[i]) <= options.l1 ? 0 : -(z[i] - sign * options.l1);
      norm += w[i] * w[i];
    }
    norm = std::sqrt(norm);
    const double limit = options.groupL1 * std::sqrt(static_cast<double>(z.size()));
    for (size_t i = 0; i < z.size(); i++) {
      w[i] *= limit == 0 ? 1 : norm <= limit ? 0 : 1 - limit / norm;
      w[i] /= (options.beta + std::sqrt(n[i])) / options.alpha + options.l2;
    }
    return w;
  }
  /// The weights that z at its largest could have: those of a z near 0 or l1 have its rounding.
  std::vector<double> conditions() const {
    std::vector<double> all(z.size());
    for (size_t i = 0; i < z.size(); i++) {
      all[i] = (largest[i] + options.l1) / ((options.beta + std::sqrt(n[i])) / options.alpha + options.l2);
    }
    return all;
  }
  void step(const std::vector<float>& g) {
    const std::vector<double> w = weights();
    for (size_t i = 0; i < z.size(); i++) {
      const double square = static_cast<double>(g[i]) * g[i];
      const double sigma = (std::sqrt(n[i] + square) - std::sqrt(n[i])) / options.alpha;
      z[i] += g[i] - sigma * w[i];
      largest[i] = std::max(largest[i], std::abs(z[i]));
      n[i] += square;
    }
  }
};

/// Gradients of a linear model: many are zero, and each coordinate has a scale of its own.
std::vector<float> gradientOf(size_t size, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> g(size);
  for (size_t i = 0; i < size; i++) {
    const float scale = std::pow(10.f, static_cast<float>(i % 5) - 3);
    g[i] = random.oneIn(3) ? 0.f : scale * (normal(random.engine()) + 0.3f);
  }
  return g;
}

const std::vector<Options> kChoices = {
    {},
    {.alpha = 0.5, .beta = 0.1, .l1 = 0.2, .l2 = 3},
    {.alpha = 0.02, .beta = 0, .l1 = 1, .l2 = 0, .start = 0.1},
    {.alpha = 1, .beta = 2, .l1 = 0.01, .l2 = 0.5, .start = 4},
};

/// One row of a table under `optimizer`, which takes steps; tensors take the same.
class TableRow {
 public:
  TableRow(const Optimizer& optimizer, size_t dim)
      : table_(makeTable(static_cast<uint32_t>(dim), optimizer, {.initial = {RowInitial::Kind::zero}})) {
    PSD_REQUIRE_OK(table_->insertMissing(ids_, Version{1}));
  }
  void step(const std::vector<float>& g) {
    number_++;
    CHECK(table_->apply(ids_, g, {}, {number_, table_->optimizer().fullLearningRate}, false,
                        Version{number_}) == 1);
  }
  /// Values, z and n.
  std::vector<std::vector<float>> planes() const { return testing::contentOf(*table_).at(7).planes; }
  std::vector<float> weights() const { return planes()[0]; }

 private:
  const std::vector<uint64_t> ids_{7};
  std::unique_ptr<RowTable> table_;
  uint64_t number_ = 0;
};

/// To a millionth of conditions(), with the zeros of the loop and no others.
void requireNear(const std::vector<float>& values, const PlainFtrl& plain) {
  const std::vector<double> expected = plain.weights(), conditions = plain.conditions();
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); i++) {
    INFO("value " << i << ": " << values[i] << ", expected " << expected[i]);
    REQUIRE((values[i] == 0) == (expected[i] == 0));
    REQUIRE(std::abs(values[i] - expected[i]) <= 1e-6 * conditions[i]);
  }
}

TEST_CASE("ftrl steps as worked out by hand") {
  // α 0.5, β 1, l1 1, l2 2. From z = n = 0 a gradient of 3 makes z = 3 and n = 9.
  TableRow row(mustParse(R"({"type": "ftrl", "lr": 0.5, "beta": 1, "l1": 1, "l2": 2})"), 1);
  row.step({3});
  CHECK(row.planes() == std::vector<std::vector<float>>{{-2.f / 10}, {3}, {9}});
  // σ = (5 − 3) / 0.5, so z = 3 + 4 + 4 · 0.2.
  row.step({4});
  CHECK(row.planes()[1][0] == Approx(7.8));
  CHECK(row.planes()[2][0] == 25);
  CHECK(row.planes()[0][0] == Approx(-6.8 / 14));
}

TEST_CASE("ftrl equals a plain loop in double to a millionth") {
  for (const Options& options : kChoices) {
    INFO(options.ftrl().describe());
    Random random(3);
    constexpr size_t kSize = 40;
    TableRow row(options.ftrl(), kSize);
    PlainFtrl plain(options, kSize);
    size_t zeros = 0;
    for (int step = 0; step < 20; step++) {
      const std::vector<float> g = gradientOf(kSize, random);
      row.step(g);
      plain.step(g);
      requireNear(row.weights(), plain);
      zeros += static_cast<size_t>(std::ranges::count(row.weights(), 0.f));
    }
    CHECK((options.l1 < 0.1 || zeros > kSize));
  }
}

TEST_CASE("group_ftrl equals a plain loop in double to a millionth, and sets whole rows to 0") {
  size_t gone = 0, partly = 0;
  for (Options options : kChoices) {
    for (const double group : {0.05, 3.}) {
      options.groupL1 = group;
      INFO(options.grouped().describe());
      for (const size_t dim : {1u, 5u, 40u}) {
        Random random(dim);
        TableRow row(options.grouped(), dim);
        PlainFtrl plain(options, dim);
        for (int step = 0; step < 20; step++) {
          const std::vector<float> g = gradientOf(dim, random);
          row.step(g);
          plain.step(g);
          requireNear(row.weights(), plain);
          const auto zeros = static_cast<size_t>(std::ranges::count(row.weights(), 0.f));
          gone += zeros == dim && dim > 1;
          partly += zeros > 0 && zeros < dim;
        }
      }
    }
  }
  CHECK(gone > 10);
  CHECK(partly > 10);
}

TEST_CASE("group_ftrl without group_l1 is ftrl, bit for bit") {
  for (const Options& options : kChoices) {
    Random random(5);
    TableRow grouped(options.grouped(), 21), plain(options.ftrl(), 21);
    for (int step = 0; step < 10; step++) {
      const std::vector<float> g = gradientOf(21, random);
      grouped.step(g);
      plain.step(g);
      REQUIRE(grouped.planes() == plain.planes());
    }
  }
}

TEST_CASE("TensorFlow's update is that of psd with half the l2, no beta and its accumulator") {
  // tf.keras.optimizers.Ftrl: learning_rate_power -0.5, l2_regularization_strength 0.25.
  const double lr = 0.05, l1 = 0.1, l2 = 0.25;
  TableRow row(Options{.alpha = lr, .beta = 0, .l1 = l1, .l2 = 2 * l2, .start = 0.1}.ftrl(), 1);
  double accum = 0.1, linear = 0, w = 0;
  Random random(11);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 15; step++) {
    const float g = normal(random.engine());
    row.step({g});
    const double next = accum + static_cast<double>(g) * g;
    linear += g - (std::sqrt(next) - std::sqrt(accum)) / lr * w;
    const double quadratic = std::sqrt(next) / lr + 2 * l2;
    w = std::abs(linear) > l1 ? ((linear > 0 ? l1 : -l1) - linear) / quadratic : 0;
    accum = next;
    CHECK(row.weights()[0] == Approx(w).epsilon(1e-5));
  }
}

/// The state of a table's row as planes that derived_weights.h accepts.
struct State {
  std::vector<std::vector<float>> values;

  std::vector<std::span<float>> planes() { return {values.begin(), values.end()}; }
};

TEST_CASE("weights are a function of the state after every step") {
  for (Options options : kChoices) {
    options.groupL1 = 0.2;
    for (const Optimizer& optimizer : {options.ftrl(), options.grouped()}) {
      INFO(optimizer.describe());
      Random random(2);
      TableRow row(optimizer, 33);
      for (int step = 0; step < 10; step++) {
        row.step(gradientOf(33, random));
        State state{row.planes()};
        std::ranges::fill(state.values[0], -9.f);
        deriveWeights(optimizer, 33, state.planes());
        REQUIRE(state.values == row.planes());
      }
    }
  }
}

TEST_CASE("a state derived from weights yields them up to rounding, and zeros exactly") {
  for (Options options : kChoices) {
    options.groupL1 = 0.2;
    for (const Optimizer& optimizer : {options.ftrl(), options.grouped()}) {
      INFO(optimizer.describe());
      constexpr uint32_t kDim = 6;
      const std::vector<float> weights{0.5f, -0.25f, 0, 1e-3f, -7, 0.1f, 0, 0, 0, 0, 0, 0};
      const std::vector<float> zeros(weights.size());
      State state{{weights, zeros, std::vector<float>(weights.size(), static_cast<float>(options.start))}};
      deriveState(optimizer, kDim, state.planes());
      for (size_t i = 0; i < weights.size(); i++) {
        INFO("weight " << weights[i]);
        CHECK((state.values[0][i] == 0) == (weights[i] == 0));
        // What is lost is a rounding of z, which is larger than the weight by l1.
        CHECK(std::abs(state.values[0][i] - weights[i]) <=
              1e-6 * std::abs(weights[i]) + 1e-7 * (1 + options.l1));
      }
      CHECK(std::vector(state.values[1].begin() + kDim, state.values[1].end()) == std::vector<float>(kDim));
    }
  }
  // Nothing happens under an optimizer with weights of their own.
  State state{{{1, 2}, {3, 4}}};
  deriveState(mustParse(R"({"type": "adagrad"})"), 1, state.planes());
  deriveWeights(mustParse(R"({"type": "adagrad"})"), 1, state.planes());
  CHECK(state.values == std::vector<std::vector<float>>{{1, 2}, {3, 4}});
}

TEST_CASE("huge and tiny gradients leave finite weights") {
  for (const Options& options : kChoices) {
    TableRow row(options.ftrl(), 4);
    for (const float g : {1e-30f, 1e25f, 1e-20f, -3e25f, 1.f}) row.step({g, -g, 0, g / 1e3f});
    for (const float w : row.weights()) CHECK(std::isfinite(w));
    CHECK(row.weights()[2] == 0);
  }
}

TEST_CASE("what changes the learning rate or a number of ftrl is refused") {
  CHECK(whyNot(R"({"type": "ftrl", "schedule": {"warmup_updates": 5}})") ==
        "schedule: cannot be combined with ftrl, whose state holds for one learning rate");
  CHECK_THAT(whyNot(R"({"type": "group_ftrl", "schedule": {"type": "cosine", "total_updates": 5}})"),
             Contains("schedule: cannot be combined with group_ftrl"));
  CHECK_THAT(whyNot(R"({"type": "ftrl", "lr": 0})"), Contains("lr: must be a number"));
  CHECK_THAT(whyNot(R"({"type": "ftrl", "beta": 0})"),
             Contains("beta: must be above 0 while l2 and initial_accumulator_value are 0"));
  CHECK(whyNot(R"({"type": "ftrl", "beta": 0, "l2": 1})") == "accepted");
  CHECK(whyNot(R"({"type": "ftrl", "beta": 0, "initial_accumulator_value": 0.1})") == "accepted");
  const Optimizer optimizer = mustParse(R"({"type": "ftrl", "lr": 0.1, "l1": 2})");
  CHECK(optimizer.derivesWeights());
  CHECK(optimizer.hyperparameterNames() ==
        std::vector<std::string>{"lr", "beta", "l1", "l2", "initial_accumulator_value"});
  PSD_REQUIRE_OK(optimizer.checkHyperparameters(optimizer.hyperparameters()));
  CHECK(
      optimizer.checkHyperparameters(std::vector<double>{0.2, 1, 2, 0, 0}).message() ==
      "a push's lr must be 0.1, that of the model's ftrl, whose weights are a function of its state and its "
      "numbers, not 0.2");
  CHECK_THAT(optimizer.checkHyperparameters(std::vector<double>{0.1, 1, 3, 0, 0}).message(),
             Contains("a push's l1 must be 2"));
}

}  // namespace
}  // namespace psd::ftrl_test
