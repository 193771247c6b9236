// Every optimizer against LibTorch's own, over random hyperparameters, gradients and schedules. The only unit
// of the server's tests that includes LibTorch.

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "server/optimizer/optimizer.h"
#include "test/support/catch.h"
#include "test/support/storage_calls.h"

namespace psd::optimizer_oracle_test {
namespace {

constexpr int64_t kElements = 333;
constexpr uint64_t kCut = 160;  // where the gradient is cut into two slices
constexpr uint64_t kUpdates = 30;
constexpr double kToleranceRelative = 1e-6;

/// A source of hyperparameters; each has its neutral value half of the time.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  double between(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool flip() { return std::bernoulli_distribution(0.5)(random_); }
  double maybe(double low, double high) { return flip() ? between(low, high) : 0.0; }

 private:
  std::mt19937_64 random_;
};

/// The same optimizer in psd's and LibTorch's terms.
struct Pair {
  AnyOptimizer ours;
  std::unique_ptr<torch::optim::Optimizer> theirs;
};

using Parameters = std::vector<torch::Tensor>;

Pair drawSgd(Draw& draw, const Parameters& parameters) {
  Sgd sgd;
  sgd.momentum = draw.maybe(0.1, 0.99);
  sgd.weightDecay = draw.maybe(0.001, 0.1);
  sgd.nesterov = sgd.momentum > 0 && draw.flip();
  sgd.dampening = sgd.nesterov ? 0 : draw.maybe(0.1, 0.9);
  const auto options = torch::optim::SGDOptions(0.1)
                           .momentum(sgd.momentum)
                           .dampening(sgd.dampening)
                           .weight_decay(sgd.weightDecay)
                           .nesterov(sgd.nesterov);
  return {sgd, std::make_unique<torch::optim::SGD>(parameters, options)};
}

Pair drawAdagrad(Draw& draw, const Parameters& parameters) {
  Adagrad adagrad;
  adagrad.lrDecay = draw.maybe(0.001, 0.1);
  adagrad.weightDecay = draw.maybe(0.001, 0.1);
  adagrad.initialAccumulatorValue = draw.maybe(0.01, 1);
  const auto options = torch::optim::AdagradOptions(0.1)
                           .lr_decay(adagrad.lrDecay)
                           .weight_decay(adagrad.weightDecay)
                           .initial_accumulator_value(adagrad.initialAccumulatorValue)
                           .eps(adagrad.eps);
  return {adagrad, std::make_unique<torch::optim::Adagrad>(parameters, options)};
}

Pair drawRmsprop(Draw& draw, const Parameters& parameters) {
  Rmsprop rmsprop;
  rmsprop.alpha = draw.between(0.5, 0.99);
  rmsprop.momentum = draw.maybe(0.1, 0.9);
  rmsprop.weightDecay = draw.maybe(0.001, 0.1);
  rmsprop.centered = draw.flip();
  rmsprop.eps = draw.between(1e-8, 1e-3);
  const auto options = torch::optim::RMSpropOptions(0.1)
                           .alpha(rmsprop.alpha)
                           .momentum(rmsprop.momentum)
                           .weight_decay(rmsprop.weightDecay)
                           .centered(rmsprop.centered)
                           .eps(rmsprop.eps);
  return {rmsprop, std::make_unique<torch::optim::RMSprop>(parameters, options)};
}

/// Adam and AdamW, which have the same options.
template <class Ours, class Theirs, class Options>
Pair drawAdam(Draw& draw, const Parameters& parameters) {
  Ours adam;
  adam.betas = {draw.between(0.5, 0.95), draw.between(0.9, 0.9999)};
  adam.weightDecay = draw.maybe(0.001, 0.1);
  adam.amsgrad = draw.flip();
  adam.eps = draw.between(1e-8, 1e-3);
  const auto options = Options(0.1)
                           .betas({adam.betas[0], adam.betas[1]})
                           .weight_decay(adam.weightDecay)
                           .amsgrad(adam.amsgrad)
                           .eps(adam.eps);
  return {adam, std::make_unique<Theirs>(parameters, options)};
}

std::span<const float> spanOf(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

/// The largest difference, relative to the element or to the root mean square, whichever is larger.
double largestError(std::span<const float> found, std::span<const float> reference) {
  double squares = 0;
  for (const float value : reference) squares += double{value} * value;
  const double scale = std::sqrt(squares / static_cast<double>(reference.size()));
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(double{found[i]} - reference[i]);
    if (!(error <= 1e30)) return INFINITY;
    largest = std::max(largest, error / std::max<double>(std::abs(reference[i]), scale));
  }
  return largest;
}

/// Runs both for kUpdates updates, each on its own optimizer state, and compares the weights after each.
/// The next update starts from LibTorch's weights: what is compared is a step, not the sum of 30 roundings.
template <class DrawPair>
void compare(uint64_t seed, DrawPair drawPair) {
  Draw draw(seed);
  torch::manual_seed(seed);
  torch::Tensor weights = torch::randn({kElements});
  auto [algorithm, theirs] = drawPair(draw, Parameters{weights});
  Optimizer optimizer;
  optimizer.algorithm = algorithm;
  optimizer.fullLearningRate = draw.between(0.001, 0.1);
  optimizer.schedule = {.type = Schedule::Type::cosine, .warmupUpdates = 5, .totalUpdates = 2 * kUpdates};
  const double gradientScale = std::pow(10.0, draw.between(-3, 1));
  INFO("seed " << seed << ": " << optimizer.describe());

  const auto backend = makeCpuBackend();
  const uint64_t counts[] = {kElements};
  auto shards = backend->allocate(counts, optimizer);
  PSD_REQUIRE_OK(shards);
  testing::StorageCalls storage(*backend, *shards->front());
  PSD_REQUIRE_OK(storage.write(0, spanOf(weights)));

  for (uint64_t number = 1; number <= kUpdates; ++number) {
    const UpdateScalars update{number, optimizer.learningRate(number)};
    const torch::Tensor gradient = torch::randn({kElements}) * gradientScale;
    PSD_REQUIRE_OK(storage.apply(0, spanOf(gradient).first(kCut), update));
    PSD_REQUIRE_OK(storage.apply(kCut, spanOf(gradient).subspan(kCut), update));
    weights.mutable_grad() = gradient.clone();
    theirs->param_groups()[0].options().set_lr(update.learningRate);
    theirs->step();
    const auto found = storage.read(0, kElements);
    PSD_REQUIRE_OK(found);
    INFO("update " << number);
    REQUIRE(largestError(found->values, spanOf(weights)) <= kToleranceRelative);
    PSD_REQUIRE_OK(storage.write(0, spanOf(weights)));
  }
}

constexpr uint64_t kSeeds = 40;

TEST_CASE("sgd equals LibTorch's") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) compare(seed, drawSgd);
}

TEST_CASE("adagrad equals LibTorch's") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) compare(seed, drawAdagrad);
}

TEST_CASE("rmsprop equals LibTorch's") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) compare(seed, drawRmsprop);
}

TEST_CASE("adam equals LibTorch's") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    compare(seed, drawAdam<Adam, torch::optim::Adam, torch::optim::AdamOptions>);
  }
}

TEST_CASE("adamw equals LibTorch's") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    compare(seed, drawAdam<AdamW, torch::optim::AdamW, torch::optim::AdamWOptions>);
  }
}

}  // namespace
}  // namespace psd::optimizer_oracle_test
