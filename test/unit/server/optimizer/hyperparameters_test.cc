// Hyperparameters that pushes carry: their runs, their ranges, and the steps that they make.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/store/backend.h"
#include "test/support/catch.h"
#include "test/support/storage_calls.h"

namespace psd::hyperparameters_test {
namespace {

using testing::copyOf;
using testing::StorageCalls;
using Run = Hyperparameters::Run;

TEST_CASE("a part of hyperparameters has its runs from its begin on, and the sets in use alone") {
  const Hyperparameters whole{{{1}, {2}, {3}}, {{32, 0}, {64, 1}, {96, 2}, {128, 1, false}}};
  CHECK(whole.part(0, 128) == whole);
  CHECK(whole.part(48, 48) == Hyperparameters{{{2}, {3}}, {{16, 0}, {48, 1}}});
  CHECK(whole.part(96, 32) == Hyperparameters{{{2}}, {{32, 0, false}}});
  CHECK(whole.part(32, 0).runs.empty());
  CHECK(whole.withAllSteps().runs == std::vector<Run>{{32, 0}, {64, 1}, {96, 2}, {128, 1}});
  const Hyperparameters joined =
      Hyperparameters{{{1}, {2}}, {{16, 1}, {32, 1, false}, {48, 1}}}.withAllSteps();
  CHECK(joined.runs == std::vector<Run>{{48, 1}});
}

TEST_CASE("the hyperparameters of an optimizer are its rate and its number options, in order") {
  Optimizer adam;
  adam.algorithm = AdamW{};
  adam.fullLearningRate = 0.5;
  CHECK(adam.hyperparameterNames() ==
        std::vector<std::string>{"lr", "betas[0]", "betas[1]", "eps", "weight_decay"});
  CHECK(adam.hyperparameters() == std::vector<double>{0.5, 0.9, 0.999, 1e-8, 1e-2});
}

TEST_CASE("a push's hyperparameters are in the ranges of the configuration") {
  Optimizer adam;
  adam.algorithm = AdamW{};
  const auto why = [](const Optimizer& optimizer, const std::vector<double>& values) {
    return optimizer.checkHyperparameters(values).message();
  };
  PSD_REQUIRE_OK(adam.checkHyperparameters(std::vector<double>{0, 0, 0, 1e-8, 0}));
  CHECK(why(adam, {0.1, 0.9}) == "a push carries 2 hyperparameters; expected the 5 of adamw");
  CHECK(why(adam, {-1, 0.9, 0.9, 1e-8, 0}) == "a push's lr must be from 0 to 1e+06, not -1");
  CHECK(why(adam, {0.1, 0.9, 1, 1e-8, 0}) == "a push's betas[1] must be from 0 to below 1, not 1");
  CHECK(why(adam, {NAN, 0.9, 0.9, 1e-8, 0}) == "a push's lr must be from 0 to 1e+06, not nan");
  CHECK(why(adam, {0.1, 0.9, 0.9, 0, 0}) == "a push's eps must be from 1e-30 to 1, not 0");

  Optimizer plain, momentum, nesterov, centered;
  momentum.algorithm = Sgd{.momentum = 0.9};
  nesterov.algorithm = Sgd{.momentum = 0.9, .nesterov = true};
  centered.algorithm = Rmsprop{.momentum = 0.5, .centered = true};
  PSD_REQUIRE_OK(momentum.checkHyperparameters(std::vector<double>{0.1, 0, 0, 0}));
  CHECK(why(plain, {0.1, 0.9, 0, 0}) ==
        "a push's momentum must be 0, as in the model's optimizer, sgd lr=0.01, which keeps other state per "
        "weight");
  CHECK(why(nesterov, {0.1, 0, 0, 0}) ==
        "a push's hyperparameters: Nesterov momentum requires a momentum and zero dampening");
  // The step would take the other buffer for its own.
  CHECK(why(centered, {0.1, 0.9, 1e-8, 0, 0}).find("a push's momentum must be above 0") == 0);
}

/// Weights and slots after updates of `elements` elements, all by `update(number)`.
std::vector<std::vector<float>> after(const Optimizer& optimizer, uint64_t elements,
                                      const std::function<UpdateScalars(uint64_t)>& update) {
  const auto backend = makeCpuBackend();
  auto shards = backend->allocate(std::vector<uint64_t>{elements}, optimizer);
  PSD_REQUIRE_OK(shards);
  StorageCalls storage(*backend, *shards->front());
  std::vector<float> gradient(elements);
  for (uint64_t i = 0; i < elements; i++) gradient[i] = static_cast<float>(i % 7) - 3;
  PSD_REQUIRE_OK(storage.write(0, std::vector<float>(elements, 1.f)));
  for (uint64_t number = 1; number <= 3; number++) PSD_REQUIRE_OK(storage.apply(0, gradient, update(number)));
  std::vector<std::vector<float>> planes{copyOf(storage.read(0, elements).value())};
  for (uint32_t slot = 0; slot < optimizer.slotCount(); slot++) {
    planes.push_back(copyOf(storage.readSlot(slot, 0, elements).value()));
  }
  return planes;
}

TEST_CASE("each run of elements steps like an optimizer with its numbers, and one without a step stays") {
  constexpr uint64_t kElements = 96;
  Optimizer first, second;
  Adam decaying, slow;
  decaying.weightDecay = 0.1;
  slow.betas = {0.5, 0.75};
  slow.eps = 1e-3;
  first.algorithm = decaying;
  first.fullLearningRate = 0.5;
  second.algorithm = slow;
  second.fullLearningRate = 0.25;
  const auto own = [](const Optimizer& optimizer) {
    return after(optimizer, kElements, [&](uint64_t number) {
      return UpdateScalars{number, optimizer.fullLearningRate};
    });
  };
  const auto halved = second.hyperparameters();
  const auto pushed = std::make_shared<const Hyperparameters>(
      Hyperparameters{{first.hyperparameters(), {0.125, halved[1], halved[2], halved[3], halved[4]}},
                      {{32, 0}, {64, 1}, {96, 0, false}}});
  const auto together = after(first, kElements, [&](uint64_t number) {
    UpdateScalars scalars{number, 99};
    scalars.pushed = pushed;
    return scalars;
  });
  second.fullLearningRate = 0.125;
  const auto one = own(first), other = own(second);
  for (size_t plane = 0; plane < together.size(); plane++) {
    INFO("plane " << plane);
    const float untouched = plane == 0 ? 1.f : 0.f;
    for (uint64_t i = 0; i < kElements; i++) {
      const float expected = i < 32 ? one[plane][i] : i < 64 ? other[plane][i] : untouched;
      REQUIRE(together[plane][i] == expected);
    }
  }
}

TEST_CASE("the factor of an update scales the learning rates of its push") {
  Optimizer plain;
  const auto twice = after(plain, 16, [](uint64_t number) {
    UpdateScalars scalars{number, 99};
    scalars.pushed = std::make_shared<const Hyperparameters>(Hyperparameters{{{0.5, 0, 0, 0}}, {{16, 0}}});
    scalars.factor = 0.5;
    return scalars;
  });
  CHECK(twice == after(plain, 16, [](uint64_t number) { return UpdateScalars{number, 0.25}; }));
}

}  // namespace
}  // namespace psd::hyperparameters_test
