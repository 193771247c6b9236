// Local steps of trainers, compared with the algorithms in plain code.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "test/support/catch.h"
#include "test/support/difference.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/exchange/fragment_exchange.h"
#include "trainer/loop/training_loop.h"

namespace psd::own_steps_test {
namespace {

using testing::FakeClient;
using testing::FakeDaemon;
using testing::largestDifference;
using testing::SoftmaxModel;

constexpr uint32_t kBatch = 16, kSamples = 128;  // 8 steps per epoch
constexpr double kRate = 0.05;

LoopOptions steps(uint64_t count) { return {{Rank{0}, 1}, kBatch, 1, count, 1}; }

TrainingSummary train(FakeDaemon& daemon, uint64_t count, const std::vector<LoopObserver*>& observers = {}) {
  FakeClient client(daemon);
  SoftmaxModel model;
  const auto data = makeSynthetic(kSamples, Split::train, 1);
  TrainingLoop loop(client, model, *data, steps(count));
  PSD_REQUIRE_OK(loop.join());
  const auto summary = loop.run(observers, [] { return false; });
  PSD_REQUIRE_OK(summary);
  return *summary;
}

/// The inner optimizer's rate in each of `count` steps.
std::vector<double> ratesOf(FakeDaemon& daemon, uint64_t count) {
  struct Rates : LoopObserver {
    void onStep(const StepReport& report) override { all.push_back(*report.rate); }
    std::vector<double> all;
  } rates;
  train(daemon, count, {&rates});
  return rates.all;
}

std::vector<double> ratesAt(const FakeDaemon& daemon, const std::vector<uint64_t>& steps) {
  std::vector<double> rates;
  for (const uint64_t step : steps) rates.push_back(daemon.local.inner->rateAt(step));
  return rates;
}

/// Consecutive steps of plain SGD on the batches of a lone trainer.
class PlainSteps {
 public:
  explicit PlainSteps(const std::vector<float>& start) {
    std::ranges::copy(start, model_.parameters().begin());
  }
  std::vector<float> take() {
    if (step_ % kStepsPerEpoch == 0) part_ = sharder_.part(step_ / kStepsPerEpoch);
    static_cast<void>(data_->fill(std::span(part_).subspan(step_ % kStepsPerEpoch * kBatch, kBatch),
                                  batch_));  // data in memory is always there
    step_++;
    PSD_REQUIRE_OK(model_.computeGradients(batch_, {}));
    for (size_t i = 0; i < weights().size(); i++) {
      weights()[i] -= static_cast<float>(kRate) * model_.gradients()[i];
    }
    return {weights().begin(), weights().end()};
  }
  std::span<float> weights() { return model_.parameters(); }

 private:
  static constexpr uint64_t kStepsPerEpoch = kSamples / kBatch;
  SoftmaxModel model_;
  std::unique_ptr<Dataset> data_ = makeSynthetic(kSamples, Split::train, 1);
  Sharder sharder_{1, kSamples, Rank{0}, 1};
  std::vector<uint32_t> part_;
  Batch batch_;
  uint64_t step_ = 0;
};

TEST_CASE("local SGD of one trainer is plain SGD, with an exchange after each period and at the end") {
  for (uint64_t period : {1, 3, 20}) {
    INFO("period " << period);
    FakeDaemon daemon;
    daemon.local = {period, kRate, 0};
    daemon.learningRate = 1;
    const TrainingSummary summary = train(daemon, 11);
    PlainSteps plain(std::vector<float>(daemon.values.size(), 0.f));
    for (int i = 0; i < 11; i++) plain.take();
    CHECK(largestDifference(daemon.values, plain.weights()) < 1e-6);
    const uint64_t exchanges = (11 + period - 1) / period;
    REQUIRE(daemon.steps.size() == exchanges);
    for (uint64_t i = 0; i < exchanges; i++) CHECK(daemon.steps[i] == i + 1);
    uint64_t samples = 0;
    for (uint32_t one : daemon.samples) samples += one;
    CHECK(samples == 11 * kBatch);
    CHECK(summary.steps == 11);
    CHECK(summary.samples == samples);
  }
}

TEST_CASE("EASGD moves the trainer and the centre by the same difference") {
  constexpr float kAlpha = 0.3f;
  constexpr uint64_t kPeriod = 3, kSteps = 10;
  FakeDaemon daemon;
  daemon.local = {kPeriod, kRate, kAlpha};
  daemon.learningRate = kAlpha;
  train(daemon, kSteps);
  std::vector<float> centre(daemon.values.size(), 0.f);
  PlainSteps plain(centre);
  for (uint64_t step = 1; step <= kSteps; step++) {
    plain.take();
    if (step % kPeriod != 0 && step != kSteps) continue;
    for (size_t i = 0; i < centre.size(); i++) {
      const float difference = plain.weights()[i] - centre[i];
      plain.weights()[i] -= kAlpha * difference;
      centre[i] += kAlpha * difference;
    }
  }
  CHECK(largestDifference(daemon.values, centre) < 1e-6);
  CHECK(daemon.version == 4);
}

TEST_CASE("the rate of an inner optimizer follows the rounds of the run, not the learner's own steps") {
  FakeDaemon daemon;
  daemon.local = {.period = 4, .inner = InnerOptimizer{.rate = 0.5, .warmupSteps = 100, .totalSteps = 200}};
  daemon.version = 11;  // rounds before this learner joined
  CHECK(ratesOf(daemon, 6) == ratesAt(daemon, {45, 46, 47, 48, 49, 50}));
  CHECK(daemon.localSteps == std::vector<uint32_t>{4, 2});
}

TEST_CASE("if several pushes make a round of the run, the rate follows that many versions") {
  FakeDaemon daemon;
  daemon.local = {
      .period = 6, .inner = InnerOptimizer{.rate = 0.5, .warmupSteps = 1000}, .updatesPerRound = 4};
  daemon.version = 11;
  // ⌊11 · 6 / 4⌋ = 16 steps before the first six, ⌊12 · 6 / 4⌋ = 18 before the next.
  CHECK(ratesOf(daemon, 8) == ratesAt(daemon, {17, 18, 19, 20, 21, 22, 19, 20}));
}

TEST_CASE("when the round is about to close a learner pushes what it has, and drops it if it has closed") {
  const RoundDue why = GENERATE(RoundDue::closing, RoundDue::stepsDone);
  FakeDaemon daemon;
  daemon.local = {.period = 4, .inner = InnerOptimizer{.rate = kRate}, .endsEarly = true};
  daemon.learningRate = 1;
  daemon.dues = {why, std::nullopt, RoundDue::closed};
  FakeClient client(daemon);
  SoftmaxModel model;
  const auto data = makeSynthetic(kSamples, Split::train, 1);
  TrainingLoop loop(client, model, *data, steps(8));
  PSD_REQUIRE_OK(loop.join());
  const auto summary = loop.run({}, [] { return false; });
  PSD_REQUIRE_OK(summary);
  // One step on request, a whole period, one discarded step, and the rest of eight steps.
  CHECK(daemon.localSteps == std::vector<uint32_t>{1, 4, 2});
  CHECK(daemon.samples == std::vector<uint32_t>{kBatch, 4 * kBatch, 2 * kBatch});
  CHECK(summary->late == 1);
}

TEST_CASE("local steps do not overlap with transfers") {
  FakeDaemon daemon;
  daemon.local = {4, kRate, 0};
  FakeClient client(daemon);
  SoftmaxModel model;
  const auto data = makeSynthetic(kSamples, Split::train, 1);
  for (const bool prefetch : {true, false}) {
    LoopOptions options = steps(4);
    options.prefetch = prefetch;
    options.inflight = prefetch ? 0 : 1;
    TrainingLoop loop(client, model, *data, options);
    const auto joined = loop.join();
    REQUIRE_FALSE(joined.ok());
    CHECK(joined.error().code == ErrorCode::invalidArgument);
    CHECK(joined.message() ==
          "--inflight and --prefetch cannot be combined with policy fake, under which trainers take local "
          "steps");
  }
}

TEST_CASE("steps whose exchange fails are part of the next one") {
  FakeDaemon daemon;
  daemon.local = {2, kRate, 0};
  daemon.learningRate = 1;
  daemon.values = {8, 8};
  daemon.failPushAtStep = 1;
  daemon.failure = {ErrorCode::notReady, "too few"};
  FakeClient client(daemon);
  std::vector<float> parameters(2), spare(2);
  FragmentExchange exchange(client, daemon.local, {}, {[](const PushInfo&) {}, [] {}});
  PSD_REQUIRE_OK(exchange.begin(parameters, spare));
  const auto step = [&](float to) {
    std::ranges::fill(parameters, to);
    exchange.stepped(kBatch);
    return exchange.due(false) ? exchange.exchange(false) : Status();
  };
  PSD_REQUIRE_OK(step(7));
  CHECK(step(6).error().code == ErrorCode::notReady);
  PSD_REQUIRE_OK(step(5));
  CHECK(daemon.localSteps == std::vector<uint32_t>{3});
  CHECK(daemon.samples == std::vector<uint32_t>{3 * kBatch});
  CHECK(daemon.values == std::vector<float>{5, 5});
  PSD_REQUIRE_OK(exchange.ready());
  CHECK(exchange.progress() == 2);  // as the daemon counts its one round
}

TEST_CASE("an exchange whose wait is ended continues with the next one") {
  FakeDaemon daemon;
  daemon.local = {.period = 2};
  daemon.learningRate = 1;
  daemon.values = {8, 8};
  FakeClient client(daemon);
  std::vector<float> parameters(2), spare(2);
  int answers = 0;
  FragmentExchange exchange(client, daemon.local, {}, {[&](const PushInfo&) { answers++; }, [] {}});
  const auto endsOnce = [&](const std::function<Status()>& call) {
    daemon.endedWaits = 1;
    CHECK(call().error().code == ErrorCode::interrupted);
    CHECK(exchange.due(false));
    PSD_REQUIRE_OK(call());
  };
  daemon.endedWaits = 1;
  CHECK(exchange.begin(parameters, spare).error().code == ErrorCode::interrupted);
  PSD_REQUIRE_OK(exchange.exchange(false));
  CHECK(parameters == std::vector<float>{8, 8});
  std::ranges::fill(parameters, 6);
  exchange.stepped(kBatch);
  exchange.stepped(kBatch);
  SECTION("of all") {
    endsOnce([&] { return exchange.exchange(true); });
  }
  SECTION("of those due") {
    endsOnce([&] { return exchange.exchange(false); });
  }
  SECTION("which settles") {
    daemon.endedWaits = 2;
    CHECK(exchange.exchange(false).error().code == ErrorCode::interrupted);
    endsOnce([&] { return exchange.settle(); });
    PSD_REQUIRE_OK(exchange.exchange(true));
  }
  CHECK(daemon.steps == std::vector<uint64_t>{1});
  CHECK(daemon.localSteps == std::vector<uint32_t>{2});
  CHECK(answers == 1);
  const size_t pulls = daemon.destinations.size();
  endsOnce([&] { return exchange.ready(); });
  CHECK(daemon.destinations.size() == pulls + 1);
  CHECK(parameters == std::vector<float>{6, 6});
  CHECK(exchange.finished());
}

TEST_CASE("EASGD: a pull of the centre whose wait is ended is not repeated") {
  FakeDaemon daemon;
  daemon.local = {.period = 1, .alpha = 0.5};
  daemon.learningRate = 0.5;
  daemon.values = {8, 8};
  FakeClient client(daemon);
  std::vector<float> parameters(2), spare(2);
  FragmentExchange exchange(client, daemon.local, {}, {[](const PushInfo&) {}, [] {}});
  PSD_REQUIRE_OK(exchange.begin(parameters, spare));
  std::ranges::fill(parameters, 4);
  exchange.stepped(kBatch);
  daemon.endedWaits = 1;
  CHECK(exchange.exchange(false).error().code == ErrorCode::interrupted);
  PSD_REQUIRE_OK(exchange.exchange(false));
  CHECK(daemon.destinations.size() == 2);
  CHECK(parameters == std::vector<float>{6, 6});
  CHECK(daemon.values == std::vector<float>{6, 6});
}

TEST_CASE("an exchange that is rejected ends the run and names its step") {
  FakeDaemon daemon;
  daemon.local = {2, kRate, 0};
  daemon.failPushAtStep = 3;
  daemon.failure = {ErrorCode::overloaded, "no room"};
  FakeClient client(daemon);
  SoftmaxModel model;
  const auto data = makeSynthetic(kSamples, Split::train, 1);
  TrainingLoop loop(client, model, *data, steps(8));
  PSD_REQUIRE_OK(loop.join());
  const auto summary = loop.run({}, [] { return false; });
  REQUIRE_FALSE(summary.ok());
  CHECK(summary.message() == "step 6 (epoch 1): no room");
}

}  // namespace
}  // namespace psd::own_steps_test
