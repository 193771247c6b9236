// Batches of sizes that the daemon chooses.

#include <vector>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/loop/gradient_weight.h"
#include "trainer/loop/training_loop.h"

namespace psd::auto_batch_test {
namespace {

using testing::FakeClient;
using testing::FakeDaemon;
using testing::SoftmaxModel;
using What = AssignedSamples::What;

constexpr uint32_t kSamples = 100, kNominal = 16;

TEST_CASE("the pace is known after some steps, and is the median of the newest") {
  SamplePace pace;
  for (const double warmUp : {9.0, 7.0}) pace.add(2, warmUp);
  pace.add(2, 0.2);
  pace.add(4, 0.8);
  CHECK(pace.sampleSeconds() == 0);
  pace.add(2, 50);  // an outlier
  CHECK(pace.sampleSeconds() == 0.2);
  pace.add(1, 0.3);
  pace.add(1, 0.3);
  CHECK(pace.sampleSeconds() == 0.3);  // of 0.1 0.2 25 0.3 0.3
  for (int i = 0; i < 3; i++) pace.add(1, 2);
  CHECK(pace.sampleSeconds() == 2);  // of 0.3 0.3 2 2 2
}

TEST_CASE("a weight applies to the elements that are final and in its ranges") {
  std::vector<float> gradient(10, 2.f);
  const std::vector<ElementRange> where{{1, 2}, {5, 4}};
  scaleGradient(gradient, {0, 7}, where, 1.5f);
  CHECK(gradient == std::vector<float>{2, 3, 3, 2, 2, 3, 3, 2, 2, 2});
  scaleGradient(gradient, {7, 3}, where, 0.5f);
  CHECK(gradient == std::vector<float>{2, 3, 3, 2, 2, 3, 3, 1, 1, 2});
  scaleGradient(gradient, {0, 10}, {}, 9.f);
  CHECK(gradient[0] == 2);
}

LoopOptions assigned(bool autoBatch, uint32_t inflight = 0) {
  LoopOptions options{{Rank{0}, 1}, kNominal};
  options.assignedSamples = true;
  options.autoBatch = autoBatch;
  options.inflight = inflight;
  return options;
}

/// What one loop did to a daemon of rate 1.
struct Trained {
  Trained(const std::vector<AssignedSamples>& assignment, const LoopOptions& options) {
    daemon.learningRate = 1;
    daemon.assignment.assign(assignment.begin(), assignment.end());
    FakeClient client(daemon);
    SoftmaxModel model;
    const auto data = makeSynthetic(kSamples, Split::train, 1);
    TrainingLoop loop(client, model, *data, options);
    PSD_REQUIRE_OK(loop.join());
    result = loop.run({&recorder}, [] { return false; }).status();
  }
  struct Recorder : LoopObserver {
    void onStep(const StepReport& report) override { reports.push_back(report); }
    std::vector<StepReport> reports;
  };
  FakeDaemon daemon;
  Recorder recorder;
  Status result;
};

/// A batch of `count`, to be weighted in [begin, end).
AssignedSamples batch(uint32_t count, uint64_t begin = 0, uint64_t end = 0) {
  AssignedSamples assigned{What::range, 0, 0, count, {}};
  if (end > begin) assigned.scaledByTrainer.push_back({begin, end - begin});
  return assigned;
}

TEST_CASE("a gradient is weighted by its samples only where the policy does not do it") {
  constexpr uint64_t kBegin = 1000, kEnd = 3000;
  for (const uint32_t inflight : {0u, 2u}) {
    const Trained plain({batch(2 * kNominal)}, assigned(true, inflight));
    const Trained weighed({batch(2 * kNominal, kBegin, kEnd)}, assigned(true, inflight));
    PSD_REQUIRE_OK(plain.result);
    PSD_REQUIRE_OK(weighed.result);
    CHECK(weighed.daemon.samples == std::vector<uint32_t>{2 * kNominal});
    bool any = false;
    for (size_t i = 0; i < plain.daemon.values.size(); i++) {
      const float once = plain.daemon.values[i];
      REQUIRE(weighed.daemon.values[i] == (i >= kBegin && i < kEnd ? 2 * once : once));
      any = any || (i >= kBegin && i < kEnd && once != 0);
    }
    CHECK(any);
  }
}

TEST_CASE("a batch of the nominal size, and any of a fixed one, is pushed unchanged") {
  const Trained fixed({batch(kNominal), batch(5)}, assigned(false));
  const Trained chosen({batch(kNominal, 0, 8000), batch(5)}, assigned(true));
  PSD_REQUIRE_OK(fixed.result);
  PSD_REQUIRE_OK(chosen.result);
  CHECK(fixed.daemon.values == chosen.daemon.values);
  for (const SamplesRequest& request : fixed.daemon.requests) {
    CHECK(request.nominal == 0);
    CHECK(request.sampleSeconds == 0);
    CHECK(request.count == kNominal);
  }
}

TEST_CASE("the trainer reports its nominal size immediately and its pace once known") {
  const Trained trained(std::vector<AssignedSamples>(6, batch(3)), assigned(true));
  PSD_REQUIRE_OK(trained.result);
  const auto& requests = trained.daemon.requests;
  REQUIRE(requests.size() == 7);
  constexpr size_t kUnknown = SamplePace::kWarmUpSteps + SamplePace::kStepsMin;
  for (size_t i = 0; i < requests.size(); i++) {
    CHECK(requests[i].nominal == kNominal);
    CHECK(requests[i].count == kAutoBatchFactorMax * kNominal);
    CHECK((requests[i].sampleSeconds > 0) == (i >= kUnknown));
  }
  for (const StepReport& report : trained.recorder.reports) {
    CHECK(report.autoBatch);
    CHECK(report.samples == 3);
  }
}

TEST_CASE("more samples than requested are rejected") {
  CHECK(Trained({batch(kNominal + 1)}, assigned(false)).result.error().code == ErrorCode::protocolMismatch);
  PSD_REQUIRE_OK(Trained({batch(kSamples)}, assigned(true)).result);
  CHECK(Trained({batch(kAutoBatchFactorMax * kNominal + 1)}, assigned(true)).result.error().code ==
        ErrorCode::protocolMismatch);
}

}  // namespace
}  // namespace psd::auto_batch_test
