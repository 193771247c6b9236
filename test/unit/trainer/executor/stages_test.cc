// A model cut into stages: equal outputs and gradients, and the order of a stage's work.

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/types/finite.h"
#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/executor/stages/stage_pipeline.h"
#include "trainer/model/model_list.h"
#include "trainer/task/named_tensor.h"

namespace psd::stages_test {
namespace {

using Catch::Matchers::Contains;
using Direction = StagePipeline::Direction;

/// With stages that start at these layers, all on the CPU.
Result<std::unique_ptr<ExecutionModel>> makeModel(const std::string& name,
                                                  const std::vector<std::string>& begins = {},
                                                  uint32_t microBatches = 1) {
  const auto choice = chooseModel(name);
  PSD_REQUIRE_OK(choice);
  ExecutionOptions options;
  options.microBatches = microBatches;
  for (const std::string& layer : begins) options.stages.push_back({layer, Device()});
  return makeExecutionModel(*choice, 1, options);
}

std::vector<NamedTensor> images(uint64_t count) {
  NamedTensor image{"image", ElementType::f32, {count, 1, 28, 28}, std::vector<std::byte>(count * 784 * 4)};
  for (size_t i = 0; i < count * 784; i++) image.values<float>()[i] = std::sin(static_cast<float>(i));
  return {image};
}

/// Other parameters for the same model.
Weights scaled(const ExecutionModel& model, float factor) {
  const uint64_t count = ModelLayout(model.spec()).totalElements();
  const Weights initial = model.initialValues();
  const auto values = std::make_shared<std::vector<float>>(initial.get(), initial.get() + count);
  for (float& value : *values) value *= factor;
  return {values, values->data()};
}

// These two are called on several threads, where Catch's macros are not allowed.

std::unique_ptr<ForwardPass> forward(ExecutionModel& model, Weights weights, uint64_t samples,
                                     bool training = true) {
  auto pass = model.forward(std::move(weights), images(samples), training);
  if (!pass.ok()) throw std::runtime_error(pass.message());
  return *std::move(pass);
}

std::vector<float> backward(const ExecutionModel& model, ForwardPass& pass) {
  NamedTensor gradient = pass.outputs().at(0);
  for (size_t i = 0; float& value : gradient.values<float>()) value = 0.01f * static_cast<float>(i++ % 7);
  std::vector<float> gradients(ModelLayout(model.spec()).totalElements(), std::nanf(""));
  if (const Status done = pass.backward({gradient}, gradients); !done.ok()) {
    throw std::runtime_error(done.message());
  }
  if (!allFinite(gradients)) throw std::runtime_error("a part of the gradient is not written");
  return gradients;
}

void requireNear(std::span<const float> some, std::span<const float> others) {
  REQUIRE(some.size() == others.size());
  float most = 0, difference = 0;
  for (size_t i = 0; i < some.size(); i++) {
    most = std::max(most, std::abs(others[i]));
    difference = std::max(difference, std::abs(some[i] - others[i]));
  }
  CHECK(most > 0);
  CHECK(difference <= 1e-5f * most);
}

std::span<const float> valuesOf(const NamedTensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

TEST_CASE("Outputs and gradients of a model in stages are those of the whole, up to the order of summation") {
  const auto [name, begins] = GENERATE(table<std::string, std::vector<std::string>>({
      {"mlp", {"fc2"}},
      {"resnet20:width=4", {"block0"}},
      {"resnet20:width=4", {"block3", "block6", "fc"}},
  }));
  const uint32_t microBatches = GENERATE(1u, 3u, 64u);  // more than there are samples, too
  const auto whole = makeModel(name), cut = makeModel(name, begins, microBatches);
  PSD_REQUIRE_OK(whole);
  PSD_REQUIRE_OK(cut);
  for (const float factor : {1.0f, 1.5f}) {
    const auto expected = forward(**whole, scaled(**whole, factor), 7);
    const auto pass = forward(**cut, scaled(**cut, factor), 7);
    CHECK(pass->outputs().at(0).toString() == expected->outputs().at(0).toString());
    requireNear(valuesOf(pass->outputs().at(0)), valuesOf(expected->outputs().at(0)));
    requireNear(backward(**cut, *pass), backward(**whole, *expected));
  }
}

TEST_CASE("A model with dropout can be cut, and its outputs equal those of the whole one") {
  const auto whole = makeModel("mnist_cnn"), cut = makeModel("mnist_cnn", {"conv2", "fc1", "fc2"}, 2);
  PSD_REQUIRE_OK(whole);
  PSD_REQUIRE_OK(cut);
  const auto expected = forward(**whole, (*whole)->initialValues(), 5, false);
  requireNear(valuesOf(forward(**cut, (*cut)->initialValues(), 5, false)->outputs().at(0)),
              valuesOf(expected->outputs().at(0)));
  backward(**cut, *forward(**cut, (*cut)->initialValues(), 5));
}

TEST_CASE("Concurrent passes through the stages keep the weights that each saw") {
  const auto whole = makeModel("mlp"), cut = makeModel("mlp", {"fc2"}, 4);
  PSD_REQUIRE_OK(whole);
  PSD_REQUIRE_OK(cut);
  std::vector<std::future<std::vector<float>>> passes;
  for (int i = 1; i <= 4; i++) {
    passes.push_back(std::async(std::launch::async, [&, i] {
      std::vector<float> last;
      for (int times = 0; times < 5; times++) {
        const auto first = forward(**cut, scaled(**cut, static_cast<float>(i)), 8);
        const auto second =
            forward(**cut, scaled(**cut, 10), 8);  // other weights, before the first's backward pass
        last = backward(**cut, *first);
        backward(**cut, *second);
      }
      return last;
    }));
  }
  for (int i = 1; i <= 4; i++) {
    const auto expected = forward(**whole, scaled(**whole, static_cast<float>(i)), 8);
    requireNear(passes[static_cast<size_t>(i - 1)].get(), backward(**whole, *expected));
  }
}

TEST_CASE("Invalid stages are rejected by one line") {
  const auto [name, begins, words] = GENERATE(table<std::string, std::vector<std::string>, std::string>({
      {"mlp", {"fc3"}, "stages[0]: no layer 'fc3' follows there; expected one of fc2"},
      {"mlp", {"fc1"}, "stages[0]: no layer 'fc1' follows there; expected one of fc2"},
      {"mnist_cnn", {"fc1", "conv2"}, "stages[1]: no layer 'conv2' follows there; expected one of fc2"},
      {"mlp", {"fc2", "fc2"}, "stages[1]: no layer 'fc2' follows there; expected no further stage"},
  }));
  const auto model = makeModel(name, begins, 2);
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().code == ErrorCode::invalidArgument);
  CHECK_THAT(model.message(), Contains(words));
}

TEST_CASE("Inputs that a layer does not accept fail the pass, and no other") {
  const auto cut = makeModel("mlp", {"fc2"}, 2);
  PSD_REQUIRE_OK(cut);
  std::vector<NamedTensor> wrong = images(4);
  wrong[0].shape = {4, 1, 56, 14};
  wrong[0].shape[3] = 7;
  wrong[0].bytes.resize(4 * 56 * 7 * 4);
  CHECK_FALSE((*cut)->forward((*cut)->initialValues(), wrong, true).ok());
  backward(**cut, *forward(**cut, (*cut)->initialValues(), 4));
}

TEST_CASE("A stage runs backward parts first, and a part that throws ends only its run") {
  StagePipeline pipeline(2, [] {});
  std::promise<void> gate, begun;
  std::vector<std::string> order;  // at stage 1, written by its thread only
  const auto start = [&](Direction way, size_t parts, StagePipeline::Work work) {
    return std::async(std::launch::async, [&pipeline, way, parts, work] { pipeline.run(way, parts, work); });
  };
  const auto untilWaiting = [&pipeline](size_t parts) {
    while (pipeline.waiting() != parts) std::this_thread::yield();
  };
  auto held = start(Direction::forward, 1, [&, open = gate.get_future().share()](size_t stage, size_t) {
    if (stage == 0) return;
    begun.set_value();
    open.wait();
  });
  begun.get_future().wait();
  auto forward = start(Direction::forward, 2, [&order](size_t stage, size_t part) {
    if (stage == 1) order.push_back("forward " + std::to_string(part));
  });
  untilWaiting(2);
  auto backward = start(Direction::backward, 2, [&order](size_t stage, size_t part) {
    if (stage == 1) order.push_back("backward " + std::to_string(part));
  });
  untilWaiting(4);
  auto thrown = start(Direction::backward, 3, [](size_t stage, size_t part) {
    if (stage == 0 && part == 1) throw std::runtime_error("not today");
  });
  untilWaiting(7);
  gate.set_value();
  CHECK_THROWS_WITH(thrown.get(), "not today");
  for (auto* run : {&held, &forward, &backward}) run->get();
  CHECK(order == std::vector<std::string>{"backward 0", "backward 1", "forward 0", "forward 1"});
}

}  // namespace
}  // namespace psd::stages_test
