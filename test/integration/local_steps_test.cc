// Trainers that take local steps, with a real daemon between them, compared with the algorithms in plain
// code.

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "test/integration/softmax_trainers.h"
#include "test/support/async_backend.h"
#include "test/support/difference.h"

namespace psd::local_steps_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::largestDifference;
using testing::LocalServer;
using testing::SoftmaxModel;
using testing::SoftmaxTrainer;

constexpr uint32_t kBatch = 8, kSamples = 192;
constexpr double kRate = 0.0625;
constexpr uint64_t kSteps = 14;  // per trainer

Json configOf(const Json& policy, uint32_t shards) {
  return {{"policy", policy},
          {"shards", shards},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", kRate}}}};
}

LoopOptions optionsOf(uint32_t rank, uint32_t worldSize) {
  return {{Rank{rank}, worldSize}, kBatch, 1, kSteps, 1};
}

/// The daemon's parameters once `count` trainers have taken their steps.
std::vector<float> train(const LocalServer& server, uint32_t count) {
  std::vector<std::unique_ptr<SoftmaxTrainer>> trainers;
  for (uint32_t rank = 0; rank < count; rank++) {
    trainers.push_back(std::make_unique<SoftmaxTrainer>(server, kSamples, optionsOf(rank, count)));
    CHECK(trainers.back()->info.local.rate == kRate);
  }
  return testing::trainTogether(trainers);
}

/// A trainer's local steps in plain code.
class Reference {
 public:
  Reference(uint32_t rank, uint32_t worldSize) : sharder_(1, kSamples, Rank{rank}, worldSize) {}

  std::span<float> weights() { return model_.parameters(); }
  void step() {
    const uint64_t perEpoch = sharder_.partSize() / kBatch;
    if (steps_ % perEpoch == 0) part_ = sharder_.part(steps_ / perEpoch);
    static_cast<void>(data_->fill(std::span(part_).subspan(steps_ % perEpoch * kBatch, kBatch),
                                  batch_));  // data in memory is always there
    steps_++;
    PSD_REQUIRE_OK(model_.computeGradients(batch_, {}));
    for (size_t i = 0; i < weights().size(); i++) {
      weights()[i] -= static_cast<float>(kRate) * model_.gradients()[i];
    }
  }

 private:
  SoftmaxModel model_;
  std::unique_ptr<Dataset> data_ = makeSynthetic(kSamples, Split::train, 1);
  Sharder sharder_;
  std::vector<uint32_t> part_;
  Batch batch_;
  uint64_t steps_ = 0;
};

DEVICE_TEST("local_sgd takes the mean of the trainers' parameters, and SlowMo adds momentum") {
  constexpr uint32_t kTrainers = 3;
  constexpr uint64_t kPeriod = 4;
  for (const auto& [slowLr, slowMomentum] : std::vector<std::pair<double, double>>{{1, 0}, {0.75, 0.5}}) {
    for (const uint32_t shards : {1, 3}) {
      INFO("slow_lr " << slowLr << ", slow_momentum " << slowMomentum << ", " << shards << " shards");
      LocalServer server(configOf({{"type", "local_sgd"},
                                   {"period", kPeriod},
                                   {"slow_lr", slowLr},
                                   {"slow_momentum", slowMomentum},
                                   {"start_trainers", kTrainers}},
                                  shards),
                         device.make());
      const std::vector<float> actual = train(server, kTrainers);

      std::vector<Reference> trainers;
      for (uint32_t rank = 0; rank < kTrainers; rank++) trainers.emplace_back(rank, kTrainers);
      std::vector<double> w(actual.size()), u(actual.size());
      for (uint64_t done = 0; done < kSteps; done += kPeriod) {
        std::vector<double> mean(w.size());
        for (Reference& trainer : trainers) {
          std::ranges::copy(w, trainer.weights().begin());
          for (uint64_t i = done; i < std::min(done + kPeriod, kSteps); i++) trainer.step();
          for (size_t i = 0; i < w.size(); i++) mean[i] += trainer.weights()[i] / double{kTrainers};
        }
        for (size_t i = 0; i < w.size(); i++) {
          u[i] = slowMomentum * u[i] + (w[i] - mean[i]);
          w[i] -= slowLr * u[i];
        }
      }
      const std::vector<float> expected(w.begin(), w.end());
      CHECK(largestDifference(actual, expected) < 1e-5);
      const Json status = server.status();
      CHECK(status["policy"] == "local_sgd");
      for (const Json& shard : status["shards"]) CHECK(shard["version"] == (kSteps + kPeriod - 1) / kPeriod);
    }
  }
}

DEVICE_TEST("easgd draws trainer and centre together") {
  constexpr uint64_t kPeriod = 3;
  constexpr float kAlpha = 0.25f;
  for (const uint32_t shards : {1, 3}) {
    INFO(shards << " shards");
    LocalServer server(configOf({{"type", "easgd"}, {"period", kPeriod}, {"alpha", kAlpha}}, shards),
                       device.make());
    const std::vector<float> actual = train(server, 1);
    Reference trainer(0, 1);
    std::vector<float> centre(actual.size());
    for (uint64_t step = 1; step <= kSteps; step++) {
      trainer.step();
      if (step % kPeriod != 0 && step != kSteps) continue;
      for (size_t i = 0; i < centre.size(); i++) {
        const float difference = trainer.weights()[i] - centre[i];
        trainer.weights()[i] -= kAlpha * difference;
        centre[i] += kAlpha * difference;
      }
    }
    CHECK(largestDifference(actual, centre) < 1e-6);
  }
}

DEVICE_TEST("easgd with several trainers loses no exchange") {
  constexpr uint32_t kTrainers = 4;
  LocalServer server(configOf({{"type", "easgd"}, {"period", 2}, {"alpha", 0.1}}, 2), device.make());
  const std::vector<float> values = train(server, kTrainers);
  for (const float value : values) REQUIRE(std::isfinite(value));
  const Json status = server.status();
  for (const Json& shard : status["shards"]) CHECK(shard["version"] == kTrainers * kSteps / 2);
}

TEST_CASE("a daemon does not go over to or from steps that trainers take by themselves") {
  const Json easgd = {{"type", "easgd"}}, other = {{"type", "easgd"}, {"alpha", 0.5}},
             locked = {{"type", "locked"}};
  LocalServer server(configOf(easgd, 1));
  for (const Json& next : {locked, other}) {
    const auto change = server.reload(configOf(next, 1));
    REQUIRE_FALSE(change.ok());
    CHECK(change.message().find("trainers learn when they join how to take steps by themselves") !=
          std::string::npos);
  }
  Json faster = configOf(easgd, 1);
  faster["optimizer"]["lr"] = 0.5;
  CHECK_FALSE(server.reload(faster).ok());
  LocalServer rounds(configOf({{"type", "local_sgd"}}, 1));
  PSD_REQUIRE_OK(rounds.reload(configOf({{"type", "local_sgd"}, {"slow_lr", 0.5}}, 1)));
}

}  // namespace
}  // namespace psd::local_steps_test
