#include "trainer/bench/train_bench.h"

#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/dataset/synthetic.h"

namespace psd::train_bench_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::FakeClient;
using testing::FakeDaemon;
using testing::SoftmaxModel;

constexpr uint64_t kBlock = 5;  // steps of alternating blocks with and without the daemon

/// Fails from its second block on.
struct FailingModel : SoftmaxModel {
  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override {
    if (++calls > kBlock) return Error{ErrorCode::internal, "out of luck"};
    return SoftmaxModel::computeGradients(batch, whenFinal);
  }
  uint64_t calls = 0;
};

/// A bench on its own daemon, with 64 samples.
struct Bench {
  Result<TrainBenchReport> run(Model& alone, LoopOptions loop = {.batchSize = 8}) {
    const auto data = makeSynthetic(64, Split::train, 1);
    return runTrainBench(client, withServer, alone, *data, loop, 0.02);
  }

  FakeDaemon daemon;
  FakeClient client{daemon};
  SoftmaxModel withServer;
};

bool hasLearned(Model& model) {
  return std::any_of(model.parameters().begin(), model.parameters().end(), [](float w) { return w != 0; });
}

}  // namespace

TEST_CASE("bench train measures steps with the daemon and without") {
  for (const uint32_t inflight : {0u, 2u}) {
    INFO(inflight << " in flight");
    Bench bench;
    bench.daemon.isSlow = inflight > 0;
    SoftmaxModel alone;
    const auto report = bench.run(alone, {.batchSize = 8, .inflight = inflight, .prefetch = inflight > 0});
    PSD_REQUIRE_OK(report);
    // The first block warms up; of every other one the first step does not count.
    const uint64_t taken = bench.daemon.steps.size() - kBlock;
    REQUIRE(taken >= kBlock);
    CHECK(report->steps == taken - (taken + kBlock - 1) / kBlock);
    CHECK(report->alone > 0);
    CHECK(report->server >= report->compute);
    CHECK(report->compute > 0);
    CHECK(report->policy == "fake");
    CHECK(report->device == "cpu");
    CHECK(hasLearned(bench.withServer));
    CHECK(hasLearned(alone));
    CHECK(bench.daemon.samples.front() == 8);
    CHECK(bench.daemon.left == 1);
    CHECK(bench.daemon.openPushes == 0);
    CHECK(bench.daemon.openPulls == 0);
  }
}

TEST_CASE("bench train ends with the first failure, of the daemon or of the model alone") {
  Bench refused;
  refused.daemon.failPushAtStep = 7;
  refused.daemon.failure = {ErrorCode::shuttingDown, "going"};
  SoftmaxModel alone;
  CHECK_THAT(refused.run(alone).message(), StartsWith("step 7") && Contains("going"));

  Bench bench;
  FailingModel failing;
  const auto report = bench.run(failing);
  REQUIRE_FALSE(report.ok());
  CHECK(report.message() == "out of luck");
  CHECK(bench.daemon.steps.size() == 2 * kBlock);
}

TEST_CASE("a report of bench train in both formats") {
  TrainBenchReport report;
  report.steps = 40;
  report.server = 0.003;
  report.alone = 0.002;
  report.pull = 0.0005;
  report.compute = 0.0019;
  report.push = 0.0006;
  report.policy = "hogwild";
  report.device = "cpu";
  CHECK(nlohmann::json::parse(formatJson(report)) == nlohmann::json::parse(R"({
    "operation": "train", "policy": "hogwild", "device": "cpu", "steps": 40, "server_median_s": 0.003,
    "local_median_s": 0.002, "ratio": 1.5, "pull_median_s": 0.0005, "compute_median_s": 0.0019,
    "push_median_s": 0.0006})"));
  CHECK_THAT(formatText(report),
             StartsWith("train  policy hogwild, cpu, 40 steps") && Contains("ratio") && Contains("1.500"));
}

}  // namespace psd::train_bench_test
