#include "trainer/loop/training_loop.h"

#include <limits>
#include <set>
#include <vector>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/fit.h"
#include "trainer/loop/non_finite.h"

namespace psd::training_loop_test {
namespace {

using Catch::Matchers::Contains;
using testing::FakeClient;
using testing::FakeDaemon;
using testing::SoftmaxModel;

/// Keeps every report.
struct Recorder : LoopObserver {
  void onStep(const StepReport& report) override { reports.push_back(report); }
  std::vector<StepReport> reports;
};

bool never() { return false; }

/// One trainer on a fake daemon.
struct Trainer {
  explicit Trainer(FakeDaemon& daemon, const LoopOptions& options, uint32_t samples = 200)
      : client(daemon), train(makeSynthetic(samples, Split::train, 1)), loop(client, model, *train, options) {
    PSD_REQUIRE_OK(loop.join());
  }

  FakeClient client;
  SoftmaxModel model;
  std::unique_ptr<Dataset> train;
  Recorder recorder;
  TrainingLoop loop;
};

LoopOptions alone(uint32_t batchSize, uint64_t epochs, uint64_t steps = 0) {
  return {{Rank{0}, 1}, batchSize, epochs, steps, 1};
}

/// Two epochs whose transfers overlap with the computation.
LoopOptions overlapped() {
  LoopOptions options = alone(64, 2);
  options.inflight = 2;
  options.prefetch = true;
  return options;
}

}  // namespace

TEST_CASE("the loop learns the synthetic set") {
  FakeDaemon daemon;
  daemon.learningRate = 0.01f;
  Trainer trainer(daemon, alone(16, 4), 400);
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  PSD_REQUIRE_OK(summary);
  CHECK(trainer.recorder.reports.front().loss > 2.0);  // ln 10 = 2.3: untrained
  CHECK(summary->loss < 0.6);
  CHECK(summary->steps == 100);
  CHECK(summary->samples == 1600);
  CHECK_FALSE(summary->interrupted);

  SoftmaxModel other;
  const auto test = makeSynthetic(400, Split::test, 1);
  const auto report = evaluateServer(trainer.client, other, *test);
  PSD_REQUIRE_OK(report);
  CHECK(report->score.samples == 100);
  CHECK(report->score.value("accuracy") > 0.95);
  CHECK(report->versions == std::vector<Version>{Version{100}});
}

TEST_CASE("a model takes the rank that the daemon assigns") {
  FakeDaemon daemon;
  daemon.freeRank = Rank{3};
  CHECK(Trainer(daemon, alone(16, 1)).model.rank == -1);
  LoopOptions options = alone(16, 1);
  options.membership.anyRank = true;
  CHECK(Trainer(daemon, options).model.rank == 3);
}

TEST_CASE("steps, epochs and sample counts are numbered and add up") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(64, 2));  // 200 samples: 64, 64, 64, 8
  PSD_REQUIRE_OK(trainer.loop.run({&trainer.recorder}, never));
  CHECK(daemon.steps == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(daemon.samples == std::vector<uint32_t>{64, 64, 64, 8, 64, 64, 64, 8});
  const auto& reports = trainer.recorder.reports;
  REQUIRE(reports.size() == 8);
  CHECK(reports[3].epoch == 1);
  CHECK(reports[3].endsEpoch);
  CHECK(reports[4].epoch == 2);
  CHECK_FALSE(reports[4].endsEpoch);
  CHECK(reports[7].totalSteps == 8);
  CHECK(reports[7].totalEpochs == 2);
}

TEST_CASE("training with --steps stops in the middle of an epoch or continues over several") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(64, 1, 6));
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  PSD_REQUIRE_OK(summary);
  CHECK(summary->steps == 6);
  CHECK(trainer.recorder.reports.back().epoch == 2);
  CHECK(trainer.recorder.reports.back().totalEpochs == 2);
  CHECK(trainer.recorder.reports.back().endsEpoch);
}

TEST_CASE("only the first trainer initializes the model") {
  FakeDaemon daemon;
  SoftmaxModel first, second;
  first.parameters()[0] = 1.f;
  second.parameters()[0] = 2.f;
  const auto data = makeSynthetic(10, Split::train, 1);
  FakeClient clientA(daemon), clientB(daemon);
  TrainingLoop loopA(clientA, first, *data, {{Rank{0}, 2}, 1, 1, 0, 1});
  TrainingLoop loopB(clientB, second, *data, {{Rank{1}, 2}, 1, 1, 0, 1});
  CHECK(loopA.join()->initializedModel);
  CHECK_FALSE(loopB.join()->initializedModel);
  CHECK(daemon.values[0] == 1.f);
}

TEST_CASE("a request to stop ends the loop between two steps") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(64, 2));
  const auto summary = trainer.loop.run({&trainer.recorder}, [&] { return daemon.steps.size() == 3; });
  PSD_REQUIRE_OK(summary);
  CHECK(summary->interrupted);
  CHECK(summary->steps == 3);
  CHECK(daemon.steps.size() == 3);
  CHECK(daemon.left == 0);  // leaving is up to the caller
}

TEST_CASE("an error from the server names step and epoch") {
  FakeDaemon daemon;
  daemon.failPushAtStep = 5;
  daemon.failure = {ErrorCode::shuttingDown, "the server is shutting down: psd stop"};
  Trainer trainer(daemon, alone(64, 2));
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  REQUIRE_FALSE(summary.ok());
  CHECK(summary.error().code == ErrorCode::shuttingDown);
  CHECK(summary.message() == "step 5 (epoch 2): the server is shutting down: psd stop");
}

TEST_CASE("a rejected gradient is explained by the tensor that is not finite") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(64, 1));
  trainer.model.nanFromCall = 2;
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  REQUIRE_FALSE(summary.ok());
  CHECK(summary.error().code == ErrorCode::nonFinite);
  CHECK_THAT(summary.message(), Contains("step 2 (epoch 1): the gradient of bias holds nan at "
                                         "element 4 of 10"));
  CHECK(daemon.steps.size() == 1);
}

TEST_CASE("pushes overlap up to the bound, in order, and all are answered in the end") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  LoopOptions options = alone(64, 2);  // 8 steps
  options.inflight = 3;
  Trainer trainer(daemon, options);
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  PSD_REQUIRE_OK(summary);
  CHECK(daemon.steps == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(daemon.mostOpenPushes == 4);  // three of earlier steps and the one just finished
  CHECK(daemon.openPushes == 0);
  std::vector<uint64_t> inflight;
  for (const StepReport& report : trainer.recorder.reports) inflight.push_back(report.inflight);
  CHECK(inflight == std::vector<uint64_t>{1, 2, 3, 3, 3, 3, 3, 3});
}

TEST_CASE("without overlap every push is answered within its step") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  Trainer trainer(daemon, alone(64, 1));
  PSD_REQUIRE_OK(trainer.loop.run({&trainer.recorder}, never));
  CHECK(daemon.mostOpenPushes == 1);
  for (const StepReport& report : trainer.recorder.reports) CHECK(report.inflight == 0);
  CHECK(std::set<const float*>(daemon.destinations.begin(), daemon.destinations.end()).size() == 1);
}

TEST_CASE("prefetched parameters alternate between two arrays and miss the last update") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  LoopOptions options = alone(64, 1, 6);
  options.prefetch = true;
  Trainer trainer(daemon, options);
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  PSD_REQUIRE_OK(summary);
  REQUIRE(daemon.destinations.size() == 6);  // none for a step that does not follow
  for (size_t i = 2; i < 6; i++) {
    CHECK(daemon.destinations[i] == daemon.destinations[i - 2]);
    CHECK(daemon.destinations[i] != daemon.destinations[i - 1]);
  }
  CHECK(daemon.openPulls == 0);
  CHECK(trainer.recorder.reports[0].staleness == 0);
  CHECK(trainer.recorder.reports[5].staleness == 1);
  CHECK(summary->stalenessMax == 1);
  CHECK(summary->stalenessMean == 5.0 / 6.0);
}

TEST_CASE("a stop waits for calls in flight") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  Trainer trainer(daemon, overlapped());
  const auto summary = trainer.loop.run({}, [&] { return daemon.steps.size() == 4; });
  PSD_REQUIRE_OK(summary);
  CHECK(summary->interrupted);
  CHECK(daemon.openPushes == 0);
  CHECK(daemon.openPulls == 0);
}

TEST_CASE("a push that fails late is reported with its own step, and nothing is left in flight") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  Trainer trainer(daemon, overlapped());
  trainer.model.nanFromCall = 3;
  const auto summary = trainer.loop.run({&trainer.recorder}, never);
  REQUIRE_FALSE(summary.ok());
  CHECK_THAT(summary.message(), Contains("step 3 (epoch 1): the gradient of bias holds nan"));
  CHECK(trainer.recorder.reports.back().step == 4);  // it was detected while step 5 ran
  CHECK(daemon.openPushes == 0);
  CHECK(daemon.openPulls == 0);
}

TEST_CASE("a failure of the last pushes is not lost") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  daemon.failPushAtStep = 4;
  daemon.failure = {ErrorCode::shuttingDown, "going"};
  LoopOptions options = alone(64, 1);  // 4 steps
  options.inflight = 2;
  Trainer trainer(daemon, options);
  CHECK(trainer.loop.run({}, never).message() == "step 4 (epoch 1): going");
}

TEST_CASE("a run whose last pushes were interrupted is not done") {
  FakeDaemon daemon;
  daemon.isSlow = true;
  daemon.failPushAtStep = 4;
  daemon.failure = {ErrorCode::interrupted, "told to stop"};
  LoopOptions options = alone(64, 1);  // 4 steps
  options.inflight = 2;
  Trainer trainer(daemon, options);
  const auto summary = trainer.loop.run({}, never);
  PSD_REQUIRE_OK(summary);
  CHECK(summary->steps == 4);
  CHECK(summary->interrupted);
}

TEST_CASE("a rejection that cannot be explained here is passed through") {
  FakeDaemon daemon;
  daemon.failPushAtStep = 1;
  daemon.failure = {ErrorCode::nonFinite, "shard 3 got infinity"};
  Trainer trainer(daemon, alone(64, 1));
  CHECK_THAT(trainer.loop.run({}, never).message(), Contains("shard 3 got infinity"));
}

TEST_CASE("values that are not finite are found in every tensor, except in padding") {
  const SoftmaxModel model;
  const ModelLayout layout(model.spec());
  std::vector<float> flat(layout.totalElements());
  CHECK(describeNonFinite(model.spec(), flat).empty());
  flat[17] = -std::numeric_limits<float>::infinity();
  CHECK(describeNonFinite(model.spec(), flat) == "weight holds infinity at element 17 of 7840");
}

TEST_CASE("a model that does not match the data is rejected with the columns of both") {
  struct Other : SoftmaxModel {
    explicit Other(std::vector<ColumnSpec> inputs) : columns(std::move(inputs)) {}
    std::vector<ColumnSpec> inputs() const override { return columns; }
    std::vector<ColumnSpec> columns;
  };
  const auto data = makeSynthetic(10, Split::train, 1);
  CHECK(checkFit(SoftmaxModel(), *data).ok());
  CHECK(checkFit(Other({{"label", ElementType::i64, {}, 11}}), *data).ok());
  CHECK(
      checkFit(Other({{"image", ElementType::f32, {1, 28, 28}}, {"label", ElementType::i64, {}, 9}}), *data)
          .message() ==
      "column 'label' is i64 below 10; expected i64 below 9: the data (10 synthetic images) has image "
      "f32[1,28,28], label i64 below 10, but the model softmax takes image f32[1,28,28], label i64 below 9");
  CHECK_THAT(checkFit(Other({{"weight", ElementType::f32, {}}}), *data).message(),
             Contains("column 'weight' is not there; expected f32: the data (10 synthetic images) has"));
  CHECK_FALSE(checkFit(Other({{"image", ElementType::f32, {3, 32, 32}}}), *data).ok());
  CHECK_FALSE(checkFit(Other({{"label", ElementType::i32, {}, 10}}), *data).ok());
  const testing::TempDir folder;
  testing::writeFile(folder.file("a.csv"), "x,name\n1,one\n");
  const auto files =
      openDataset(folder.file("a.csv") + ":test=" + folder.file("a.csv"), Split::train, {.seed = 1});
  PSD_REQUIRE_OK(files);
  CHECK(checkFit(Other({{"x", ElementType::i64, {}}}), **files).ok());
  CHECK(checkFit(Other({{"name", ElementType::f32, {}}}), **files).message() ==
        "column 'name' cannot be read: " + folder.file("a.csv") +
            ":2:3: 'one' is not a number that f32 can hold; the model softmax takes name f32");
}

TEST_CASE("parameters that are not finite are named, not evaluated") {
  FakeDaemon daemon;
  daemon.learningRate = 0.01f;
  Trainer trainer(daemon, alone(16, 1), 16);
  PSD_REQUIRE_OK(trainer.loop.run({&trainer.recorder}, never));
  daemon.values[3] = std::numeric_limits<float>::quiet_NaN();
  SoftmaxModel model;
  const auto report = evaluateServer(trainer.client, model, *makeSynthetic(10, Split::test, 1));
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ErrorCode::nonFinite);
  CHECK_THAT(report.message(), Contains("weight holds nan at element 3 of 7840"));
}

TEST_CASE("a loss that is not finite, of finite parameters, is not a score") {
  FakeDaemon daemon;
  daemon.learningRate = 0.01f;
  Trainer trainer(daemon, alone(16, 1), 16);
  PSD_REQUIRE_OK(trainer.loop.run({&trainer.recorder}, never));
  for (size_t i = 0; i < daemon.values.size(); i++) daemon.values[i] = i % 2 == 0 ? 3e38f : -3e38f;
  SoftmaxModel model;
  const auto report = evaluateServer(trainer.client, model, *makeSynthetic(10, Split::test, 1));
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ErrorCode::nonFinite);
  CHECK_THAT(report.message(), Contains("the loss on 2 synthetic images is not finite"));
}

TEST_CASE("evaluation before the model is initialized says so") {
  FakeDaemon daemon;
  FakeClient client(daemon);
  SoftmaxModel model;
  const auto report = evaluateServer(client, model, *makeSynthetic(10, Split::test, 1));
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ErrorCode::notReady);
}

}  // namespace psd::training_loop_test
