// An executor between remote trainers and a real daemon: what it computes, rejects and releases.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "test/fault/fault_proxy.h"
#include "test/integration/executor_images.h"
#include "test/integration/local_executor.h"
#include "test/integration/odd_models.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/remote_steps.h"
#include "trainer/executor/remote/tensor_wire.h"

namespace psd::executor_test {
namespace {

using namespace testing;
using Json = nlohmann::ordered_json;

/// The largest difference between the gradients of context `id` and those of the local model.
double differenceOf(ExecutorConnection& trainer, uint64_t id, Model& model) {
  const auto gradients = trainer.gradients(id);
  PSD_REQUIRE_OK(gradients);
  const ModelLayout layout(model.spec());
  REQUIRE(gradients->size() == model.spec().tensors.size());
  double worst = 0;
  for (size_t i = 0; i < gradients->size(); i++) {
    CHECK((*gradients)[i].name == model.spec().tensors[i].name);
    const auto values = (*gradients)[i].values<float>();
    for (size_t k = 0; k < values.size(); k++) {
      const double local = model.gradients()[layout.places()[i].begin + k];
      worst = std::max(worst, std::abs(values[k] - local));
    }
  }
  return worst;
}

StepResult trainOnce(ExecutorConnection& trainer, uint64_t context, Step step, uint32_t first = 0) {
  const Batch batch = makeBatch(first);
  const auto forward = trainer.forward(context, imagesOf(batch), true);
  PSD_REQUIRE_OK(forward);
  const auto done =
      trainer.backwardAndStep(context, likelihoodGradient(forward->outputs, batch), step, kSamples);
  PSD_REQUIRE_OK(done);
  return *done;
}

TEST_CASE("A stashed context's gradient is that of the weights that its forward pass saw, bit for bit") {
  const std::string policy = GENERATE("hogwild", "locked");
  LocalServer server(Json{{"policy", {{"type", policy}}}, {"optimizer", {{"type", "sgd"}, {"lr", 0.5}}}});
  LocalExecutor executor(server.unixAddress(), {});
  const auto one = joined(executor, 0, 2), other = joined(executor, 1, 2);
  const auto model = localCopy(server);
  const Batch batch = makeBatch();

  const auto forward = one->forward(7, imagesOf(batch), true);
  PSD_REQUIRE_OK(forward);
  CHECK(trainOnce(*other, 1, Step{1}, kSamples).outcome == PushOutcome::applied);  // changes the weights
  PSD_REQUIRE_OK(one->backward(7, likelihoodGradient(forward->outputs, batch)));
  PSD_REQUIRE_OK(model->computeGradients(batch));
  CHECK(differenceOf(*one, 7, *model) == 0);

  const auto step = one->step(7, Step{1}, kSamples);
  PSD_REQUIRE_OK(step);
  CHECK(step->outcome == PushOutcome::applied);
  CHECK(step->staleness == 1);  // the other's step, since the forward pass
  PSD_REQUIRE_OK(one->leave());
  PSD_REQUIRE_OK(other->leave());
}

TEST_CASE("A live context computes over the daemon's memory as it is when its backward pass comes") {
  LocalServer server(Json{{"optimizer", {{"type", "sgd"}, {"lr", 0.5}}}});
  LocalExecutor executor(server.unixAddress(), {{"weights", "live"}});
  const auto one = joined(executor, 0, 2), other = joined(executor, 1, 2);
  const auto model = localCopy(server);
  const Batch batch = makeBatch();
  const auto forward = one->forward(7, imagesOf(batch), true);
  PSD_REQUIRE_OK(forward);
  trainOnce(*other, 1, Step{1}, kSamples);
  PSD_REQUIRE_OK(one->backward(7, likelihoodGradient(forward->outputs, batch)));
  PSD_REQUIRE_OK(model->computeGradients(batch));
  CHECK(differenceOf(*one, 7, *model) > 1e-6);
  PSD_REQUIRE_OK(one->step(7, Step{1}, kSamples));

  SECTION("and a daemon whose memory cannot be mapped is refused by one line") {
    LocalServer locked(Json{{"policy", {{"type", "locked"}}}});
    LocalExecutor live(locked.unixAddress(), {{"weights", "live"}});
    const auto refused = connectTo(live)->join({Rank{0}, 1}, 1);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
    CHECK(refused.message().find("\"stashed\"") != std::string::npos);
  }
}

TEST_CASE("Contexts are many at once, in any order, and end with their step") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"contexts", 3}});
  const auto trainer = joined(executor);
  const Batch batch = makeBatch();
  std::vector<NamedTensor> gradient;
  for (const uint64_t id : {9ull, std::numeric_limits<unsigned long long>::max(), 0ull}) {
    const auto forward = trainer->forward(id, imagesOf(batch), true);
    PSD_REQUIRE_OK(forward);
    CHECK(forward->versions.size() == server.status()["shards"].size());
    gradient = likelihoodGradient(forward->outputs, batch);
  }
  const auto more = trainer->forward(1, imagesOf(batch), true);
  REQUIRE(!more.ok());
  CHECK(more.error().code == ErrorCode::overloaded);
  const auto twice = trainer->forward(9, imagesOf(batch), true);
  REQUIRE(!twice.ok());
  CHECK(twice.error().code == ErrorCode::invalidArgument);
  PSD_REQUIRE_OK(trainer->forward(9, imagesOf(batch), false));  // nothing of it is kept

  PSD_REQUIRE_OK(trainer->backwardAndStep(0, gradient, Step{1}, kSamples));
  PSD_REQUIRE_OK(trainer->backward(9, gradient));
  CHECK(!trainer->backward(9, gradient).ok());
  PSD_REQUIRE_OK(trainer->step(9, Step{5}, kSamples));
  PSD_REQUIRE_OK(trainer->drop(std::numeric_limits<uint64_t>::max()));
  CHECK(executor.status()["trainers"][0]["contexts"] == 0);
  CHECK(executor.status()["trainers"][0]["steps"] == 2);
}

TEST_CASE("Inputs that cannot be are refused by a typed error, and the next call is served") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto trainer = joined(executor);
  const auto images = imagesOf(makeBatch());
  const auto wrong = ErrorCode::invalidArgument;

  requireRefused(trainer->forward(1, {}, true).status(), wrong, "'image' is missing");
  auto other = images;
  other[0].shape = {kSamples, 28, 28};
  requireRefused(trainer->forward(1, other, true).status(), wrong, "expected f32[1,28,28]");
  other = images;
  other[0].bytes.pop_back();
  requireRefused(trainer->forward(1, other, true).status(), wrong, "bytes; expected");
  other = images;
  other[0].shape[0] = uint64_t{1} << 62;
  requireRefused(trainer->forward(1, other, true).status(), wrong, "fewer elements");
  other[0] = {"image", ElementType::f32, {0, 1, 28, 28}, {}};
  requireRefused(trainer->forward(1, other, true).status(), wrong, "at least one sample");
  other = {images[0], images[0]};
  requireRefused(trainer->forward(1, other, true).status(), wrong, "2 inputs");

  other[0] = {"image", ElementType::f32, {30'000, 1, 28, 28}, std::vector<std::byte>(30'000ull * 784 * 4)};
  requireRefused(trainer->forward(1, other, true).status(), wrong, "message_bytes (64.0 MiB) allows");
  PSD_REQUIRE_OK(trainer->forward(1, images, true));
}

TEST_CASE("What cannot be of a context is refused, which ends the context once it is computed") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto trainer = joined(executor);
  const Batch batch = makeBatch();
  const auto images = imagesOf(batch);
  const auto wrong = ErrorCode::invalidArgument;

  requireRefused(trainer->backward(1, {}), wrong, "there is no context 1");
  requireRefused(trainer->step(1, Step{1}, 1).status(), wrong, "there is no context 1");
  const auto begin = [&](uint64_t id) {
    auto forward = trainer->forward(id, images, true);
    PSD_REQUIRE_OK(forward);
    return likelihoodGradient(forward->outputs, batch);
  };
  auto gradient = begin(2);
  requireRefused(trainer->step(2, Step{1}, 1).status(), wrong, "expected backward before step");
  requireRefused(trainer->gradients(2).status(), wrong, "no gradient yet");
  gradient[0].shape = {10, kSamples};
  requireRefused(trainer->backward(2, gradient), wrong, "expected scores f32[32,10]");
  requireRefused(trainer->backward(2, gradient), wrong, "there is no context 2");
  gradient = begin(2);
  gradient[0].values<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  requireRefused(trainer->backward(2, gradient), ErrorCode::nonFinite, "NaN");
  gradient = begin(2);
  gradient[0].name = "logits";
  requireRefused(trainer->backward(2, gradient), wrong, "there is no such output");
  requireRefused((begin(2), trainer->backward(2, {})), wrong, "no gradient of any output");

  gradient = begin(3);
  PSD_REQUIRE_OK(trainer->backward(3, gradient));
  requireRefused(trainer->gradients(3, {"fc9.weight"}).status(), wrong, "no parameter 'fc9.weight'");
  requireRefused(trainer->step(3, Step{1}, 0).status(), wrong, "samples");
  requireRefused(trainer->step(3, Step{0}, 1).status(), wrong, "from 1");
  PSD_REQUIRE_OK(trainer->step(3, Step{2}, kSamples));
  PSD_REQUIRE_OK(trainer->backward(4, begin(4)));
  requireRefused(trainer->step(4, Step{2}, kSamples).status(), wrong, "step 2 has been pushed");
  PSD_REQUIRE_OK(trainer->step(4, Step{3}, kSamples));
  CHECK(server.status()["counters"]["gradients"] == 2);
}

TEST_CASE("No call computes before hello and join, or after leave") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"trainers", 1}});
  const auto trainer = connectTo(executor);
  CHECK(trainer->module().name == "mlp");
  CHECK(trainer->forward(1, {}, true).status().error().code == ErrorCode::notReady);
  CHECK(trainer->join({Rank{0}, 1}, 0).status().error().code == ErrorCode::invalidArgument);
  PSD_REQUIRE_OK(trainer->join({Rank{0}, 2}, 1));
  CHECK(!trainer->join({Rank{0}, 2}, 1).ok());
  const auto other = connectTo(executor);
  for (int times = 0; times < 2; times++) {
    CHECK(other->join({Rank{1}, 2}, 2).status().error().code == ErrorCode::overloaded);
  }
  PSD_REQUIRE_OK(trainer->leave());
  CHECK(trainer->forward(1, imagesOf(makeBatch()), true).status().error().code == ErrorCode::sessionEnded);
  PSD_REQUIRE_OK(other->join({Rank{1}, 2}, 2));  // there is capacity again
  PSD_REQUIRE_OK(other->leave());
}

TEST_CASE("A step that comes again over another connection is not applied again") {
  LocalServer server(Json{{"membership", {{"grace_ms", 60'000}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  constexpr uint64_t kIncarnation = 77;
  {
    const auto trainer = joined(executor, 0, 1, kIncarnation);
    trainOnce(*trainer, 1, Step{1});
    trainOnce(*trainer, 2, Step{2});
  }  // gone without a goodbye
  const auto back = joined(executor, 0, 1, kIncarnation);
  CHECK(trainOnce(*back, 1, Step{2}).outcome == PushOutcome::applied);  // as the join reported
  CHECK(server.status()["counters"]["gradients"] == 2);
  CHECK(trainOnce(*back, 1, Step{3}).outcome == PushOutcome::applied);
  CHECK(server.status()["counters"]["gradients"] == 3);
}

TEST_CASE("A gradient that is not finite ends its context, and nothing of it is pushed") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto trainer = joined(executor);
  auto forward = trainer->forward(1, imagesOf(makeBatch()), true);
  PSD_REQUIRE_OK(forward);
  // Finite, but its gradient is not.
  std::ranges::fill(forward->outputs.at(0).values<float>(), std::numeric_limits<float>::max());
  requireRefused(trainer->backward(1, forward->outputs), ErrorCode::nonFinite, "the gradient of fc1.weight");
  requireRefused(trainer->step(1, Step{1}, 1).status(), ErrorCode::invalidArgument, "no context 1");
}

TEST_CASE("A step whose push failed may come again with the same number") {
  LocalServer server(Json{{"membership", {{"grace_ms", 60'000}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  trainOnce(*joined(executor), 1, Step{5});  // gone without a goodbye
  const auto trainer = joined(executor);
  const Batch batch = makeBatch();
  for (uint64_t context = 1; context <= 2; context++) {
    const auto forward = trainer->forward(context, imagesOf(batch), true);
    PSD_REQUIRE_OK(forward);
    PSD_REQUIRE_OK(trainer->backward(context, likelihoodGradient(forward->outputs, batch)));
    // The error comes from the daemon, which has step 5, and not from the executor, which has pushed nothing.
    requireRefused(trainer->step(context, Step{3}, kSamples).status(), ErrorCode::badSlice, "step 5");
  }
  CHECK(trainOnce(*trainer, 1, Step{6}).outcome == PushOutcome::applied);
}

TEST_CASE("Calls beyond the queue are answered at once, as overloaded") {
  LocalServer server(Json{{"policy", {{"type", "sync"}}}, {"world_size", 2}});
  LocalExecutor executor(server.unixAddress(), {{"queue", 1}, {"workers", 1}});
  const auto one = joined(executor, 0, 2), other = joined(executor, 1, 2);
  const Batch batch = makeBatch();
  const auto forward = one->forward(1, imagesOf(batch), true);
  PSD_REQUIRE_OK(forward);
  auto waiting = std::async(std::launch::async, [&] {
    return one->backwardAndStep(1, likelihoodGradient(forward->outputs, batch), Step{1}, kSamples);
  });
  // Its step waits for the other trainer's, and is one call.
  until([&] { return executor.status()["passes"] == 2 && executor.status()["calls"] == 1; });
  const auto refused = other->forward(1, imagesOf(batch), true);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(isRetryable(refused.error().code));
  CHECK(executor.status()["overloaded"] == 1);
  one->interrupt();
  CHECK(waiting.get().status().error().code == ErrorCode::interrupted);
}

TEST_CASE("Calls that wait for a worker count, and hold what they hold, though their trainers are gone") {
  LocalServer server(Json::object());
  std::promise<void> gate;
  LocalExecutor executor(server.unixAddress(), {{"queue", 2}, {"workers", 1}},
                         [&](std::unique_ptr<ExecutionModel> model) {
                           return std::make_unique<GatedModel>(std::move(model), gate.get_future().share());
                         });
  const auto last = joined(executor, 2, 3);
  const Batch batch = makeBatch();
  const uint64_t inputBytes = totalBytes(imagesOf(batch));
  {
    const auto computed = joined(executor, 0, 3), waits = joined(executor, 1, 3);
    std::vector<std::future<Result<ForwardResult>>> calls;
    for (ExecutorConnection* trainer : {computed.get(), waits.get()}) {
      calls.push_back(std::async(std::launch::async, [trainer, images = imagesOf(batch)] {
        return trainer->forward(1, images, true);
      }));
      const auto atWorker = calls.size();
      until([&] {
        const Json status = executor.status();
        return status["computing"] == 1 && status["queue"].size() == atWorker - 1;
      });
    }
    for (ExecutorConnection* trainer : {computed.get(), waits.get()}) trainer->interrupt();
    for (auto& call : calls) CHECK(!call.get().ok());
  }
  until([&] { return executor.status()["trainers"].size() == 1; });
  CHECK(executor.status()["calls"] == 2);
  CHECK(executor.status()["memory_bytes"] >= 2 * inputBytes);
  CHECK(last->forward(1, imagesOf(batch), true).status().error().code == ErrorCode::overloaded);
  gate.set_value();
  until([&] { return executor.status()["calls"] == 0; });
  trainOnce(*last, 1, Step{1});
}

TEST_CASE(
    "Calls that wait are computed by the priority that the trainer gave them, and the status shows the "
    "order") {
  LocalServer server(Json::object());
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  std::vector<uint64_t> computed;  // by the number of samples of a forward pass
  constexpr uint64_t kBlocking = 1;
  LocalExecutor executor(server.unixAddress(), {{"workers", 1}, {"age_ms", 3'600'000}},
                         [&](std::unique_ptr<ExecutionModel> model) {
                           return std::make_unique<GatedModel>(std::move(model), [&](const auto& inputs) {
                             const uint64_t samples = inputs.front().shape.front();
                             computed.push_back(samples);
                             if (samples == kBlocking) opened.wait();
                           });
                         });
  const auto inputOf = [](uint64_t samples) {
    return std::vector<NamedTensor>{
        {"image", ElementType::f32, {samples, 1, 28, 28}, std::vector<std::byte>(samples * 784 * 4)}};
  };
  std::vector<std::unique_ptr<ExecutorConnection>> trainers;
  for (uint32_t rank = 0; rank < 6; rank++) trainers.push_back(joined(executor, rank, 6));
  const auto before = trainers[5]->forward(9, inputOf(20), true);
  PSD_REQUIRE_OK(before);

  std::vector<std::future<Status>> calls;
  const auto call = [&](size_t waiting, const std::function<Status()>& make) {
    calls.push_back(std::async(std::launch::async, make));
    until([&] {
      const Json status = executor.status();
      return status["computing"] == 1 && status["queue"].size() == waiting;
    });
  };
  const auto forward = [&](uint32_t rank, uint64_t samples, int8_t priority) {
    return [&trainers, &inputOf, rank, samples, priority] {
      return trainers[rank]->forward(samples, inputOf(samples), true, priority).status();
    };
  };
  call(0, forward(0, kBlocking, 0));
  call(1, forward(1, 11, -1));
  call(2, forward(2, 12, 0));
  call(3, forward(3, 13, 5));
  call(4, forward(4, 14, 0));
  call(5, [&] { return trainers[5]->backward(9, before->outputs, /*priority=*/5); });
  const Json queue = executor.status()["queue"];
  std::vector<std::vector<int>> order;  // rank, context, priority
  double waited = 0;
  for (const Json& each : queue) {
    order.push_back({each["rank"].get<int>(), each["context"].get<int>(), each["priority"].get<int>()});
    CHECK(each["call"] == (each["rank"] == 5 ? "backward" : "forward"));
    CHECK(each["waited_s"].get<double>() > 0);
    waited = std::max(waited, each["waited_s"].get<double>());
  }
  CHECK(order == std::vector<std::vector<int>>{{5, 9, 5}, {3, 13, 5}, {2, 12, 0}, {4, 14, 0}, {1, 11, -1}});
  CHECK(queue.back()["waited_s"] == waited);  // it arrived first
  until([&] { return executor.status()["queue"].back()["waited_s"].get<double>() > waited; });
  gate.set_value();
  for (auto& each : calls) PSD_REQUIRE_OK(each.get());
  CHECK(computed == std::vector<uint64_t>{20, kBlocking, 13, 12, 14, 11});
  until([&] { return executor.status()["passes"] == 7; });  // a pass counts after its answer
  const Json after = executor.status();
  CHECK(after["waited_s_most"].get<double>() > waited);
  CHECK(after["waited_s_mean"].get<double>() > waited / 7);
  CHECK(after["waited_s_mean"] < after["waited_s_most"]);
}

TEST_CASE("Gradients of outputs are held within memory_bytes") {
  constexpr uint64_t kMemoryBytes = 4u << 20;
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"memory_bytes", kMemoryBytes}});
  const auto trainer = joined(executor);
  const auto forward = trainer->forward(1, imagesOf(makeBatch()), true);
  PSD_REQUIRE_OK(forward);
  NamedTensor large = forward->outputs.at(0);
  large.shape[0] = kMemoryBytes / (large.shape.at(1) * sizeof(float));
  large.bytes.resize(large.shape[0] * large.shape[1] * sizeof(float));
  const Status refused = trainer->backward(1, {large});
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("output gradients take another") != std::string::npos);
  trainOnce(*trainer, 1, Step{1});
}

TEST_CASE("More tensors than one message has are refused by the executor, which says what would be right") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object(),
                         [](auto) { return std::make_unique<ManyTensors>(); });
  const auto trainer = joined(executor);
  const auto inputOf = [](uint64_t samples) {
    return std::vector<NamedTensor>{
        {"x", ElementType::f32, {samples}, std::vector<std::byte>(samples * sizeof(float))}};
  };
  PSD_REQUIRE_OK(trainer->forward(1, inputOf(wire::kTensorListMax), true));
  for (const bool training : {true, false}) {
    const auto outputs = trainer->forward(2, inputOf(wire::kTensorListMax + 1), training);
    REQUIRE(!outputs.ok());
    CHECK(outputs.error().code == ErrorCode::invalidArgument);
    CHECK(outputs.message().find("257 outputs; one message has 256 at most") != std::string::npos);
  }
  CHECK(executor.status()["trainers"][0]["contexts"] == 1);
  PSD_REQUIRE_OK(trainer->backward(1, {}));
  const auto gradients = trainer->gradients(1);
  REQUIRE(!gradients.ok());
  CHECK(gradients.error().code == ErrorCode::invalidArgument);
  CHECK(gradients.message().find("name fewer parameters") != std::string::npos);
  const auto some = trainer->gradients(1, {"p0", "p256"});
  PSD_REQUIRE_OK(some);
  CHECK(some->at(1).name == "p256");
}

TEST_CASE("An idle context is dropped, and its turn passes") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"context_ms", 50}, {"exclusive", true}});
  const auto one = joined(executor, 0, 2), other = joined(executor, 1, 2);
  const Batch batch = makeBatch();
  const auto forward = one->forward(5, imagesOf(batch), true);
  PSD_REQUIRE_OK(forward);
  CHECK(trainOnce(*other, 1, Step{1}).outcome == PushOutcome::applied);  // it waited for the dropped one
  const Status late = one->backward(5, likelihoodGradient(forward->outputs, batch));
  REQUIRE(!late.ok());
  CHECK(late.error().code == ErrorCode::deadlineExceeded);
}

TEST_CASE("Exclusive steps exclude each other: a gradient is never stale") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"exclusive", true}});
  std::vector<std::future<uint64_t>> staleness;
  for (uint32_t rank = 0; rank < 2; rank++) {
    staleness.push_back(std::async(std::launch::async, [&executor, rank] {
      const auto trainer = joined(executor, rank, 2);
      uint64_t most = 0;
      for (uint64_t step = 1; step <= 10; step++) {
        most = std::max(most, trainOnce(*trainer, step, Step{step}).staleness);
      }
      return most;
    }));
  }
  CHECK(staleness[0].get() == 0);
  CHECK(staleness[1].get() == 0);
}

TEST_CASE("Steps with cross-entropy train, and scores are those of the model") {
  LocalServer server(Json{{"optimizer", {{"type", "sgd"}, {"lr", 0.1}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  double first = 0, last = 0;
  for (uint64_t step = 1; step <= 30; step++) {
    const Batch batch = makeBatch(step % 4 * kSamples);
    const auto loss = (*steps)->forward(imagesOf(batch), [labels = labelsOf(batch)](const auto& outputs) {
      return computeLoss({}, outputs, labels);
    });
    PSD_REQUIRE_OK(loss);
    PSD_REQUIRE_OK((*steps)->step(Step{step}, kSamples));
    (step == 1 ? first : last) = *loss;
  }
  CHECK(last < first / 2);
  const auto model = localCopy(server);
  const Batch batch = makeBatch();
  const auto local = model->score(batch);
  PSD_REQUIRE_OK(local);
  const auto outputs = (*steps)->outputs(imagesOf(batch));
  PSD_REQUIRE_OK(outputs);
  const auto remote = scoreOutputs({}, *outputs, labelsOf(batch));
  PSD_REQUIRE_OK(remote);
  CHECK(std::abs(remote->loss() - local->loss()) < 1e-6);
  CHECK(remote->value("accuracy") == local->value("accuracy"));
  PSD_REQUIRE_OK((*steps)->leave());
}

TEST_CASE("An interrupt that comes while the next connection is made ends what comes after it") {
  LocalServer server(Json{{"membership", {{"grace_ms", 60'000}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  FaultProxy proxy(executor.address());
  std::atomic<RemoteSteps*> toInterrupt{nullptr};
  proxy.holdBack(
      [&](std::span<const std::byte>) {
        if (RemoteSteps* steps = toInterrupt.exchange(nullptr)) steps->interrupt();
        return false;
      },
      0);
  auto steps = RemoteSteps::connect({.executor = proxy.address(), .retryTimeout = testing::kExecutorConnect});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 1}));
  proxy.cut(0);
  toInterrupt = steps->get();  // by the first message of the next connection
  const auto outputs = (*steps)->outputs(imagesOf(makeBatch()));
  REQUIRE(!outputs.ok());
  CHECK(outputs.error().code == ErrorCode::interrupted);
}

TEST_CASE("A daemon is no executor, and says so at once") {
  LocalServer server(Json::object());
  const auto trainer = ExecutorConnection::connect(server.unixAddress(), testing::kExecutorConnect, "a test");
  REQUIRE(!trainer.ok());
  INFO(trainer.message());
  CHECK(trainer.error().code == ErrorCode::protocolMismatch);
}

TEST_CASE("A policy under which trainers step by themselves is refused") {
  LocalServer server(Json{{"policy", {{"type", "easgd"}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto refused = connectTo(executor)->join({Rank{0}, 1}, 1);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message().find("easgd") != std::string::npos);
}

TEST_CASE("Exclusive steps are refused where trainers wait for each other's") {
  const std::string policy = GENERATE("sync", "bounded_staleness");
  LocalServer server(Json{{"policy", {{"type", policy}}}});
  LocalExecutor executor(server.unixAddress(), {{"exclusive", true}});
  requireRefused(connectTo(executor)->join({Rank{0}, 1}, 1).status(), ErrorCode::invalidArgument, policy);
}

}  // namespace
}  // namespace psd::executor_test
