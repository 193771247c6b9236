// Policy diloco with a real daemon: its rounds compared with LibTorch's optimizers and with plain sums, and
// late learners.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "test/integration/softmax_trainers.h"
#include "test/support/difference.h"
#include "trainer/dataset/sharder.h"
#include "trainer/loop/inner_steps.h"

namespace psd::diloco_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::largestDifference;
using testing::LocalServer;
using testing::SoftmaxModel;
using testing::SoftmaxTrainer;
using Torch = std::unique_ptr<torch::optim::Optimizer>;
using MakeTorch = std::function<Torch(std::vector<torch::Tensor>)>;

constexpr uint32_t kBatch = 8, kSamples = 192;
const Json kNesterov = {{"type", "sgd"}, {"lr", 0.7}, {"momentum", 0.9}, {"nesterov", true}};

Json configOf(Json policy, const Json& optimizer, uint32_t shards = 2) {
  policy["type"] = "diloco";
  return {{"policy", policy}, {"optimizer", optimizer}, {"shards", shards}, {"threads", 2}};
}

/// The daemon's parameters once this number of learners have taken their steps.
std::vector<float> train(const LocalServer& server, uint32_t count, uint64_t steps) {
  std::vector<std::unique_ptr<SoftmaxTrainer>> learners;
  for (uint32_t rank = 0; rank < count; rank++) {
    const LoopOptions options{{Rank{rank}, count}, kBatch, 1, steps, 1};
    learners.push_back(std::make_unique<SoftmaxTrainer>(server, kSamples, options));
  }
  return testing::trainTogether(learners);
}

/// The gradients of a lone learner's batches, in order, at its current parameters.
class Gradients {
 public:
  std::span<const float> at(const torch::Tensor& weights) {
    const uint64_t perEpoch = kSamples / kBatch;
    if (steps_ % perEpoch == 0) part_ = sharder_.part(steps_ / perEpoch);
    static_cast<void>(data_->fill(std::span(part_).subspan(steps_ % perEpoch * kBatch, kBatch),
                                  batch_));  // data in memory is always there
    steps_++;
    std::copy_n(weights.data_ptr<float>(), model_.parameters().size(), model_.parameters().begin());
    PSD_REQUIRE_OK(model_.computeGradients(batch_, {}));
    return model_.gradients();
  }

 private:
  SoftmaxModel model_;
  std::unique_ptr<Dataset> data_ = makeSynthetic(kSamples, Split::train, 1);
  Sharder sharder_{1, kSamples, Rank{0}, 1};
  std::vector<uint32_t> part_;
  Batch batch_;
  uint64_t steps_ = 0;
};

void setGradient(torch::Tensor& weights, std::span<const float> gradient) {
  weights.mutable_grad() = torch::empty_like(weights);
  std::copy(gradient.begin(), gradient.end(), weights.mutable_grad().data_ptr<float>());
}

/// DiLoCo of one learner with LibTorch's optimizers alone.
std::vector<float> byLibTorch(const MakeTorch& makeInner, const MakeTorch& makeOuter, uint64_t period,
                              uint64_t rounds) {
  const auto size = static_cast<int64_t>(SoftmaxModel().parameters().size());
  torch::Tensor outer = torch::zeros({size}), inner = torch::zeros({size});
  const Torch innerSteps = makeInner({inner}), outerSteps = makeOuter({outer});
  Gradients gradients;
  for (uint64_t round = 0; round < rounds; round++) {
    inner.copy_(outer);
    for (uint64_t step = 0; step < period; step++) {
      setGradient(inner, gradients.at(inner));
      innerSteps->step();
    }
    outer.mutable_grad() = outer - inner;
    outerSteps->step();
  }
  return {outer.data_ptr<float>(), outer.data_ptr<float>() + size};
}

MakeTorch sgd(double rate, double momentum, bool nesterov) {
  return [=](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(rate).momentum(momentum).nesterov(nesterov));
  };
}

MakeTorch adamw(double rate, double decay) {
  return [=](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(rate).weight_decay(decay));
  };
}

MakeTorch adam(double rate, double decay) {
  return [=](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(
        std::move(parameters), torch::optim::AdamOptions(rate).weight_decay(decay).betas({0.8, 0.95}));
  };
}

TEST_CASE("inner optimizers take LibTorch's steps") {
  using Type = InnerOptimizer::Type;
  struct Pair {
    InnerOptimizer inner;
    MakeTorch torch;
  };
  InnerOptimizer decayed{.type = Type::sgd, .rate = 0.1, .weightDecay = 0.2, .momentum = 0.9};
  for (const Pair& pair :
       {Pair{{.type = Type::sgd, .rate = 0.1}, sgd(0.1, 0, false)},
        Pair{{.type = Type::sgd, .rate = 0.1, .momentum = 0.9, .nesterov = true}, sgd(0.1, 0.9, true)},
        Pair{decayed,
             [](std::vector<torch::Tensor> parameters) {
               return std::make_unique<torch::optim::SGD>(
                   std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.2));
             }},
        Pair{{.type = Type::adam, .rate = 0.01, .weightDecay = 0.3, .betas = {0.8, 0.95}}, adam(0.01, 0.3)},
        Pair{{.type = Type::adamw, .rate = 0.01, .weightDecay = 0.3}, adamw(0.01, 0.3)}}) {
    INFO(pair.inner.describe());
    torch::manual_seed(3);
    torch::Tensor expected = torch::randn({40});
    std::vector<float> weights(expected.data_ptr<float>(), expected.data_ptr<float>() + 40);
    const Torch reference = pair.torch({expected});
    InnerSteps steps(pair.inner);
    for (int i = 0; i < 30; i++) {
      const torch::Tensor gradient = torch::randn({40});
      const std::span<const float> values(gradient.data_ptr<float>(), 40);
      setGradient(expected, values);
      reference->step();
      steps.step(pair.inner.rate, values, weights);
    }
    CHECK(largestDifference(weights, {expected.data_ptr<float>(), 40}) < 1e-5);
  }
}

TEST_CASE("the inner rate rises, falls by a cosine, and stays") {
  const InnerOptimizer inner{.rate = 2, .warmupSteps = 4, .totalSteps = 14, .rateMin = 0.5};
  CHECK(inner.rateAt(1) == 0.5);
  CHECK(inner.rateAt(4) == 2);
  CHECK(std::abs(inner.rateAt(9) - 1.25) < 1e-12);
  CHECK(inner.rateAt(14) == 0.5);
  CHECK(inner.rateAt(1000) == 0.5);
}

TEST_CASE("one learner is its inner optimizer and the outer one by hand") {
  constexpr uint64_t kPeriod = 5, kRounds = 6;
  struct Case {
    Json inner;
    MakeTorch torch;
  };
  for (const Case& one : {Case{{{"type", "adamw"}, {"lr", 0.01}, {"weight_decay", 0.1}}, adamw(0.01, 0.1)},
                          Case{{{"type", "sgd"}, {"lr", 0.05}, {"momentum", 0.5}}, sgd(0.05, 0.5, false)}}) {
    INFO(one.inner.dump());
    LocalServer server(configOf({{"period", kPeriod}, {"inner", one.inner}}, kNesterov));
    const auto actual = train(server, 1, kPeriod * kRounds);
    CHECK(largestDifference(actual, byLibTorch(one.torch, sgd(0.7, 0.9, true), kPeriod, kRounds)) < 2e-5);
    const Json status = server.status();
    for (const Json& shard : status["shards"]) CHECK(shard["version"] == kRounds);
    CHECK(status["rounds"][0]["closed"] == kRounds);
    CHECK(status["rounds"][0]["in"] == Json::array({0}));
  }
}

TEST_CASE("one asynchronous learner is its inner optimizer and Nesterov's momentum by hand") {
  constexpr uint64_t kPeriod = 5, kRounds = 6;
  const Json inner = {{"type", "adamw"}, {"lr", 0.01}, {"weight_decay", 0.1}};
  const auto expected = byLibTorch(adamw(0.01, 0.1), sgd(0.7, 0.9, true), kPeriod, kRounds);
  for (const Json& outer : {kNesterov, Json{{"type", "delayed_nesterov"}}}) {
    INFO(outer.dump());
    Json config = configOf({{"period", kPeriod}, {"inner", inner}}, outer);
    config["policy"]["type"] = "async_diloco";
    LocalServer server(config);
    CHECK(largestDifference(train(server, 1, kPeriod * kRounds), expected) < 2e-5);
    const Json status = server.status();
    for (const Json& shard : status["shards"]) CHECK(shard["version"] == kRounds);
    CHECK(status["rounds"].empty());
  }
}

TEST_CASE("with one step in a round and rates of 1 it is sync with the mean") {
  constexpr uint32_t kLearners = 3;
  constexpr uint64_t kSteps = 12;
  const Json plain = {{"type", "sgd"}, {"lr", 1}};
  LocalServer diloco(configOf({{"period", 1}, {"start_trainers", kLearners}, {"inner", plain}}, plain));
  LocalServer sync({{"policy", {{"type", "sync"}, {"start_trainers", kLearners}}},
                    {"optimizer", plain},
                    {"shards", 2},
                    {"threads", 2}});
  CHECK(largestDifference(train(diloco, kLearners, kSteps), train(sync, kLearners, kSteps)) < 1e-6);
}

TEST_CASE("the loss falls with plain SGD inside and outside") {
  LocalServer server(
      configOf({{"period", 6}, {"start_trainers", 2}, {"inner", {{"type", "sgd"}, {"lr", 0.02}}}},
               {{"type", "sgd"}, {"lr", 1}}));
  const auto trained = train(server, 2, 48);
  SoftmaxModel model;
  const auto data = makeSynthetic(kSamples, Split::train, 1);
  std::vector<uint32_t> all(kSamples);
  for (uint32_t i = 0; i < kSamples; i++) all[i] = i;
  Batch batch;
  static_cast<void>(data->fill(all, batch));  // data in memory is always there
  const auto before = model.computeGradients(batch, {});
  std::ranges::copy(trained, model.parameters().begin());
  const auto after = model.computeGradients(batch, {});
  PSD_REQUIRE_OK(before);
  PSD_REQUIRE_OK(after);
  CHECK(*after < 0.5 * *before);
}

/// Learners that push the test's values, for a model with one tensor.
class Pushers {
 public:
  Pushers(const LocalServer& server, uint32_t count) {
    const ModelSpec model{"line", {{"w", DType::f32, {16}}}};
    for (uint32_t rank = 0; rank < count; rank++) {
      clients_.push_back(testing::clientOfSmallSlices(server));
      PSD_REQUIRE_OK(clients_.back()->join({Rank{rank}, count}, model,
                                           [this] { return std::span<const float>(zeros_); }));
    }
    values_.resize(count, std::vector<float>(16));
  }

  Client& operator[](size_t rank) { return *clients_[rank]; }
  /// For each learner: a difference that is `value` everywhere, computed from the parameters after `round`
  /// rounds.
  Pending<PushInfo> push(uint32_t rank, float value, GradientInfo behind, uint64_t round = 0) {
    std::ranges::fill(values_[rank], value);
    return clients_[rank]->push(Step{++step_}, values_[rank], behind, {Version{round}});
  }
  float value() {
    std::vector<float> values(16);
    PSD_REQUIRE_OK(clients_[0]->pull(values).wait());
    return values[7];
  }

 private:
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<float> zeros_ = std::vector<float>(16);
  std::vector<std::vector<float>> values_;
  uint64_t step_ = 0;
};

const Json kPlainOuter = {{"type", "sgd"}, {"lr", 1}};

TEST_CASE("pseudo-gradients weigh as the configuration says") {
  for (const auto& [weights, expected] : std::vector<std::pair<const char*, float>>{
           {"samples", 2.5f}, {"equal", 2.f}, {"samples2_per_step", (100 + 3 * 50) / 150.f}}) {
    INFO(weights);
    LocalServer server(configOf({{"weights", weights}, {"start_trainers", 2}}, kPlainOuter, 1));
    Pushers learners(server, 2);
    auto first = learners.push(0, 1, {10, 1}), second = learners.push(1, 3, {30, 18});
    PSD_REQUIRE_OK(first.wait());
    PSD_REQUIRE_OK(second.wait());
    CHECK(std::abs(learners.value() + expected) < 1e-6);
  }
}

TEST_CASE("robust aggregators hold for pseudo-gradients") {
  for (const char* aggregator : {"median", "trimmed_mean", "krum", "multi_krum"}) {
    INFO(aggregator);
    LocalServer server(configOf({{"aggregator", aggregator}, {"start_trainers", 5}}, kPlainOuter, 1));
    Pushers learners(server, 5);
    std::vector<Pending<PushInfo>> pushes;
    for (uint32_t rank = 0; rank < 5; rank++) {
      pushes.push_back(learners.push(rank, rank == 2 ? 1e9f : 1 + 0.01f * static_cast<float>(rank), {8, 2}));
    }
    for (auto& push : pushes) PSD_REQUIRE_OK(push.wait());
    CHECK(std::abs(learners.value() + 1) < 0.1);
  }
}

/// Waits until the call is done; fails after half a minute.
void awaitDone(const Pending<RoundDue>& call) {
  for (int i = 0; i < 3000 && !call.done(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(call.done());
}

TEST_CASE("a learner missing at the quorum is notified, and its push within the grace is in the round") {
  LocalServer server(configOf({{"quorum", 2}, {"grace_ms", 60'000}, {"start_trainers", 3}}, kPlainOuter, 1));
  Pushers learners(server, 3);
  auto due = learners[2].roundDue(Version{0});
  auto first = learners.push(0, 1, {8, 2});
  CHECK_FALSE(due.done());
  auto second = learners.push(1, 2, {8, 2});
  awaitDone(due);
  CHECK(*due.wait() == RoundDue::closing);
  const Json open = server.status()["rounds"][0];
  CHECK(open["contributed"] == Json::array({0, 1}));
  CHECK(open["grace_left_seconds"] > 0);
  auto third = learners.push(2, 6, {8, 1});
  for (auto* push : {&first, &second, &third}) {
    const auto answer = push->wait();
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == PushOutcome::applied);
  }
  CHECK(learners.value() == -3);
  CHECK(server.status()["counters"]["left_out"] == 0);
}

TEST_CASE("after the grace a round closes, and what comes later is late and counted") {
  LocalServer server(configOf({{"quorum", 2}, {"grace_ms", 50}, {"start_trainers", 3}}, kPlainOuter, 1));
  Pushers learners(server, 3);
  auto due = learners[2].roundDue(Version{0});
  for (uint64_t round = 0; round < 2; round++) {
    auto first = learners.push(0, 1, {8, 2}, round), second = learners.push(1, 2, {8, 2}, round);
    PSD_REQUIRE_OK(first.wait());
    PSD_REQUIRE_OK(second.wait());
  }
  awaitDone(due);
  CHECK(*due.wait() == RoundDue::closing);
  auto closed = learners[2].roundDue(Version{1});
  awaitDone(closed);
  CHECK(*closed.wait() == RoundDue::closed);
  const auto late = learners.push(2, 6, {8, 2}, 0).wait();
  PSD_REQUIRE_OK(late);
  CHECK(late->outcome == PushOutcome::late);
  CHECK(learners.value() == -3);
  const Json status = server.status();
  CHECK(status["counters"]["left_out"] == 2);
  CHECK(status["counters"]["late_pushes"] == 1);
  CHECK(status["histograms"]["grace_seconds"]["count"] == 2);
  const Json& rounds = status["rounds"][0];
  CHECK(rounds["closed"] == 2);
  CHECK(rounds["in"] == Json::array({0, 1}));
  CHECK(rounds["missing"] == Json::array({2}));
  CHECK(rounds["left_out"] == Json::array({{{"rank", 2}, {"rounds", 2}, {"running", 2}}}));
  CHECK(rounds["grace_seconds"] >= 0.05);
}

TEST_CASE("a grace that is measured is what the missing learner took before") {
  LocalServer server(
      configOf({{"quorum", 2}, {"grace_ms", "auto"}, {"grace_max_ms", 600'000}, {"start_trainers", 3}},
               kPlainOuter, 1));
  Pushers learners(server, 3);
  auto due = learners[2].roundDue(Version{0});
  auto first = learners.push(0, 1, {8, 2}), second = learners.push(1, 2, {8, 2});
  awaitDone(due);
  auto third = learners.push(2, 3, {8, 2});
  for (auto* push : {&first, &second, &third}) PSD_REQUIRE_OK(push->wait());
  CHECK(learners.value() == -2);
  // Before the ten minutes are over the next round closes without it.
  first = learners.push(0, 1, {8, 2}, 1), second = learners.push(1, 2, {8, 2}, 1);
  for (auto* push : {&first, &second}) PSD_REQUIRE_OK(push->wait());
  const Json rounds = server.status()["rounds"][0];
  CHECK(rounds["missing"] == Json::array({2}));
  CHECK(rounds["grace_seconds"] < 600);
}

TEST_CASE("after the grace a round closes, and what comes later counts where the configuration says so") {
  LocalServer server(configOf(
      {{"quorum", 2}, {"grace_ms", 0}, {"start_trainers", 3}, {"late", {{"rate", 0.5}}}}, kPlainOuter, 1));
  Pushers learners(server, 3);
  auto first = learners.push(0, 1, {8, 2}), second = learners.push(1, 2, {8, 2});
  PSD_REQUIRE_OK(first.wait());
  PSD_REQUIRE_OK(second.wait());
  auto late = learners.push(2, 6, {8, 2}), next = learners.push(0, 3, {8, 2}, 1);
  for (auto* push : {&late, &next}) {
    const auto answer = push->wait();
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == PushOutcome::applied);
  }
  CHECK(learners.value() == -1.5f - 4);  // (6 · ½ + 3) / 1.5
  const Json status = server.status();
  CHECK(status["counters"]["late_pushes"] == 0);
  CHECK(status["counters"]["late_counted"] == 1);
  CHECK(status["rounds"][0]["in"] == Json::array({0, 2}));
  CHECK(status["rounds"][0]["late"] == Json::array({2}));
}

TEST_CASE("a call that waits for the end of a round is ended by a newer one, and by the learner's leaving") {
  LocalServer server(configOf({{"grace_ms", 0}, {"start_trainers", 2}}, kPlainOuter, 1));
  Pushers learners(server, 2);
  auto older = learners[0].roundDue(Version{0}), newer = learners[0].roundDue(Version{0});
  awaitDone(older);
  CHECK(older.wait().error().code == ErrorCode::notReady);
  CHECK_FALSE(newer.done());
  PSD_REQUIRE_OK(learners[0].leave());
  LocalServer without(configOf({{"start_trainers", 1}}, kPlainOuter, 1));
  Pushers alone(without, 1);
  auto closed = alone[0].roundDue(Version{0});  // without a grace there is no other notice
  PSD_REQUIRE_OK(alone.push(0, 1, {8, 50}).wait());
  awaitDone(closed);
  CHECK(*closed.wait() == RoundDue::closed);
}

TEST_CASE("another policy redirects learners without rounds that ask the old one") {
  const auto with = [](uint32_t learners) -> Json {
    return {{"policy",
             {{"type", "async_diloco"}, {"period", 50}, {"dynamic_period", true}, {"learners", learners}}},
            {"optimizer", {{"type", "delayed_nesterov"}, {"lr", 1}, {"delay", 4}}},
            {"shards", 1}};
  };
  LocalServer server(with(0));
  Pushers learners(server, 1);
  auto due = learners[0].roundDue(Version{0});
  PSD_REQUIRE_OK(server.reload(with(4)));  // as many as `delay` has
  awaitDone(due);
  CHECK(due.wait().error().code == ErrorCode::notReady);
  auto again = learners[0].roundDue(Version{0});
  PSD_REQUIRE_OK(learners.push(0, 1, {8, 50}).wait());
  CHECK_FALSE(again.done());
}

TEST_CASE("a running daemon changes the grace, but not whether there is one, nor what learners run") {
  const auto with = [](Json policy) { return configOf(std::move(policy), kPlainOuter, 1); };
  LocalServer server(with({{"grace_ms", 50}}));
  PSD_REQUIRE_OK(server.reload(with({{"grace_ms", 80}})));
  for (const Json& policy : {Json::object(), Json{{"grace_ms", 80}, {"period", 9}},
                             Json{{"grace_ms", 80}, {"inner", {{"type", "adam"}}}}}) {
    const auto change = server.reload(with(policy));
    REQUIRE_FALSE(change.ok());
    CHECK(change.message().find("trainers learn when they join how to take steps by themselves") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace psd::diloco_test
