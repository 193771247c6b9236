// Batches that a trainer divides into contexts of one step.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "test/integration/executor_images.h"
#include "test/integration/odd_models.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/remote_model.h"
#include "trainer/executor/remote/remote_steps.h"

namespace psd::executor_parts_test {
namespace {

using namespace testing;
using Json = nlohmann::ordered_json;

/// The daemon's parameters after five steps of batches in that many parts, at an executor with these keys.
std::vector<float> trainedInParts(uint32_t parts, const Json& config, std::vector<double>& losses) {
  LocalServer server(Json{{"optimizer", {{"type", "sgd"}, {"lr", 0.1}, {"momentum", 0.9}}}});
  LocalExecutor executor(server.unixAddress(), config);
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  auto model = RemoteModel::make(**steps, parts);
  PSD_REQUIRE_OK(model);
  for (uint64_t step = 1; step <= 5; step++) {
    const auto loss = (*model)->computeGradients(makeBatch(step % 4 * kSamples), nullptr);
    PSD_REQUIRE_OK(loss);
    losses.push_back(*loss);
    const auto done = (*steps)->step(Step{step}, kSamples);
    PSD_REQUIRE_OK(done);
    CHECK(done->staleness == 0);
  }
  const Json status = executor.status();
  CHECK(status["trainers"][0]["contexts"] == 0);
  CHECK(status["trainers"][0]["forwards"] == 5 * parts);
  CHECK(status["trainers"][0]["steps"] == 5);
  PSD_REQUIRE_OK((*steps)->leave());
  CHECK(server.status()["counters"]["gradients"] == 5);
  const auto copy = localCopy(server);
  return {copy->parameters().begin(), copy->parameters().end()};
}

TEST_CASE("A batch in parts, each in a context of its own, trains as the whole batch does") {
  const Json config = GENERATE(Json::object(), Json{{"stages", {"fc2"}}, {"micro_batches", 1}});
  std::vector<double> losses, lossesOfParts;
  const std::vector<float> whole = trainedInParts(1, config, losses),
                           parts = trainedInParts(3, config, lossesOfParts);  // of 10, 11 and 11 samples
  double largest = 0;
  for (size_t i = 0; i < whole.size(); i++) {
    largest = std::max(largest, std::abs(double{whole[i]} - double{parts[i]}));
  }
  CHECK(largest < 1e-6);
  for (size_t i = 0; i < losses.size(); i++) CHECK(lossesOfParts[i] == Approx(losses[i]).epsilon(1e-6));
}

TEST_CASE("Of a batch in parts backward passes are computed before the last forward pass") {
  LocalServer server(Json::object());
  constexpr uint64_t kParts = 4;
  std::atomic<LocalExecutor*> running{nullptr};
  std::atomic<uint64_t> forwards{0};
  std::atomic<bool> inTurn{false};
  LocalExecutor executor(server.unixAddress(), {{"workers", 2}}, [&](std::unique_ptr<ExecutionModel> model) {
    return std::make_unique<GatedModel>(std::move(model), [&](const auto&) {
      if (++forwards != kParts) return;
      // The others are kParts - 1 passes: one more is a backward pass.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (!inTurn && std::chrono::steady_clock::now() < deadline) {
        inTurn = running.load()->status()["passes"].get<uint64_t>() >= kParts;
      }
    });
  });
  running = &executor;
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  auto model = RemoteModel::make(**steps, kParts);
  PSD_REQUIRE_OK(model);
  PSD_REQUIRE_OK((*model)->computeGradients(makeBatch(), nullptr));
  CHECK(inTurn);
  PSD_REQUIRE_OK((*steps)->step(Step{1}, kSamples));
  PSD_REQUIRE_OK((*steps)->leave());
}

TEST_CASE(
    "A step of several contexts takes those that have their gradients, each once, or leaves all as they "
    "are") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto trainer = joined(executor);
  const Batch batch = makeBatch();
  for (const uint64_t context : {1, 2, 3}) {
    const auto forward = trainer->forward(context, imagesOf(batch), true);
    PSD_REQUIRE_OK(forward);
    if (context < 3) PSD_REQUIRE_OK(trainer->backward(context, likelihoodGradient(forward->outputs, batch)));
  }
  const auto wrong = ErrorCode::invalidArgument;
  requireRefused(trainer->step(1, Step{1}, kSamples, {2, 1}).status(), wrong, "context 1 is given twice");
  requireRefused(trainer->step(1, Step{1}, kSamples, {2, 9}).status(), wrong, "there is no context 9");
  requireRefused(trainer->step(1, Step{1}, kSamples, {2, 3}).status(), wrong,
                 "context 3 has no gradient yet");
  PSD_REQUIRE_OK(trainer->step(1, Step{1}, kSamples, {2}));
  CHECK(executor.status()["trainers"][0]["contexts"] == 1);
  CHECK(server.status()["counters"]["gradients"] == 1);
}

/// The steps of a trainer that has joined at an executor.
std::unique_ptr<RemoteSteps> joinedSteps(const LocalExecutor& executor) {
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  return *std::move(steps);
}

TEST_CASE("An executor that does not accept that many parts of a batch says so before the first step") {
  const auto [config, words] =
      GENERATE(table<Json, std::string>({{Json{{"exclusive", true}}, "`exclusive`"},
                                         {Json{{"contexts", 2}}, "`contexts` allows a trainer 2"}}));
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), config);
  const auto steps = joinedSteps(executor);
  requireRefused(checkParts(steps->module(), 3), ErrorCode::invalidArgument, words);
  const Batch batch = makeBatch();
  const RemoteLoss loss = [labels = labelsOf(batch)](const auto& outputs) {
    return computeLoss({}, outputs, labels);
  };
  const BatchPart part{imagesOf(batch), loss};
  requireRefused(steps->forward({part, part, part}).status(), ErrorCode::invalidArgument, words);
  requireRefused(steps->forward(std::vector<BatchPart>()).status(), ErrorCode::invalidArgument,
                 "at least one part");
  PSD_REQUIRE_OK(checkParts(steps->module(), 1));
  PSD_REQUIRE_OK(steps->leave());
}

TEST_CASE("More parts than calls that the queue has are trained on, a few at a time") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"queue", 4}, {"workers", 1}});
  const auto steps = joinedSteps(executor);
  auto model = RemoteModel::make(*steps, kSamples);
  PSD_REQUIRE_OK(model);
  PSD_REQUIRE_OK((*model)->computeGradients(makeBatch(), nullptr));
  PSD_REQUIRE_OK(steps->step(Step{1}, kSamples));
  CHECK(server.status()["counters"]["gradients"] == 1);
  PSD_REQUIRE_OK(steps->leave());
}

TEST_CASE("Outputs that are asked for between the passes of a step and its end leave it as it is") {
  const uint32_t parts = GENERATE(1, 3);
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto steps = joinedSteps(executor);
  auto model = RemoteModel::make(*steps, parts);
  PSD_REQUIRE_OK(model);
  requireRefused(steps->step(Step{1}, kSamples).status(), ErrorCode::invalidArgument,
                 "step() comes after forward()");
  for (uint64_t step = 1; step <= 2; step++) {
    PSD_REQUIRE_OK((*model)->computeGradients(makeBatch(), nullptr));
    PSD_REQUIRE_OK(steps->outputs(imagesOf(makeBatch())));
    PSD_REQUIRE_OK(steps->step(Step{step}, kSamples));
  }
  CHECK(executor.status()["trainers"][0]["contexts"] == 0);
  CHECK(server.status()["counters"]["gradients"] == 2);
  requireRefused((*model)->computeGradients(Batch(), nullptr).status(), ErrorCode::invalidArgument,
                 "a batch without samples");
  PSD_REQUIRE_OK(steps->leave());
}

TEST_CASE("A part that is refused ends the contexts of the others") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  const Batch batch = makeBatch();
  const RemoteLoss right = [labels = labelsOf(batch)](const auto& outputs) {
    return computeLoss({}, outputs, labels);
  };
  const RemoteLoss wrong = [](const auto&) -> Result<LossResult> {
    return Error{ErrorCode::nonFinite, "not this part"};
  };
  const auto refused =
      (*steps)->forward({{imagesOf(batch), right}, {imagesOf(batch), wrong}, {imagesOf(batch), right}});
  requireRefused(refused.status(), ErrorCode::nonFinite, "not this part");
  CHECK(executor.status()["trainers"][0]["contexts"] == 0);
  PSD_REQUIRE_OK((*steps)->leave());
}

}  // namespace
}  // namespace psd::executor_parts_test
