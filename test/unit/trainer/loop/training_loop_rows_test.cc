// Training and scoring of a model with embedding tables.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/factor_model.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/loop/training_loop.h"

namespace psd::training_loop_rows_test {
namespace {

using Catch::Matchers::Contains;
using testing::FactorModel;
using testing::FakeClient;
using testing::FakeDaemon;

constexpr double kNoise = 0.3;

std::unique_ptr<Dataset> ratings(uint32_t samples, Split split = Split::train) {
  auto opened = openDataset("ratings:users=40,items=30,noise=0.3,samples=" + std::to_string(samples), split,
                            {.seed = 1});
  PSD_REQUIRE_OK(opened);
  return std::move(*opened);
}

struct Recorder : LoopObserver {
  void onStep(const StepReport& report) override { reports.push_back(report); }
  std::vector<StepReport> reports;
};

bool never() { return false; }

/// One trainer on a fake daemon.
struct Trainer {
  Trainer(FakeDaemon& daemon, const LoopOptions& options, uint32_t samples = 3600)
      : client(daemon), train(ratings(samples)), loop(client, model, *train, options) {
    PSD_REQUIRE_OK(loop.join());
  }
  Result<TrainingSummary> run() { return loop.run({&recorder}, never); }

  FakeClient client;
  FactorModel model;
  std::unique_ptr<Dataset> train;
  Recorder recorder;
  TrainingLoop loop;
};

LoopOptions alone(uint32_t batchSize, uint64_t epochs) { return {{Rank{0}, 1}, batchSize, epochs, 0, 1}; }

}  // namespace

TEST_CASE("rows are learned, and the scoring of the model agrees") {
  for (const auto& [inflight, prefetch] : {std::pair(0u, false), {0u, true}, {2u, false}, {3u, true}}) {
    INFO(inflight << " " << prefetch);
    FakeDaemon daemon;
    daemon.learningRate = 0.4f;
    daemon.isSlow = true;
    LoopOptions options = alone(20, 20);
    options.inflight = inflight;
    options.prefetch = prefetch;
    Trainer trainer(daemon, options);
    const auto summary = trainer.run();
    PSD_REQUIRE_OK(summary);
    CHECK(summary->steps == 3600);
    CHECK(daemon.steps.size() == 3600);
    CHECK(daemon.openPushes == 0);
    CHECK(daemon.openPulls == 0);
    // The ratings are generated from four factors and two biases, which six factors can represent.
    FactorModel scored;
    const auto test = ratings(3600, Split::test);
    const auto report = evaluateServer(trainer.client, scored, *test);
    PSD_REQUIRE_OK(report);
    CHECK(report->score.samples == 400);
    CHECK(report->score.value("rmse") > 0.8 * kNoise);
    CHECK(report->score.value("rmse") < 1.5 * kNoise);
    const StepReport& last = trainer.recorder.reports.back();
    CHECK(last.rows > 10);
    CHECK(last.rows <= 40);
    CHECK(last.knownRows == last.rows);
    CHECK(trainer.recorder.reports.front().knownRows == 0);
    CHECK(last.gradientBytes == (last.rows * FactorModel::kDim + 16) * sizeof(float));
    // The memory of a push that may be unanswered is not reused by a later step; nor is more allocated than
    // needed.
    const auto& blocks = trainer.model.blocks;
    for (size_t step = 1; step < blocks.size(); ++step) {
      const size_t first = step - std::min<size_t>(step, inflight);
      REQUIRE(std::find(blocks.begin() + static_cast<ptrdiff_t>(first),
                        blocks.begin() + static_cast<ptrdiff_t>(step),
                        blocks[step]) == blocks.begin() + static_cast<ptrdiff_t>(step));
    }
    CHECK(std::set(blocks.end() - 1000, blocks.end()).size() <= inflight + 2 + (prefetch ? 1 : 0));
  }
}

TEST_CASE("an overlapping step is independent: rows of a push in flight stay as they are") {
  // Plain SGD, answered late: the same steps in sequence, each from what the daemon had when it started.
  const auto trained = [](uint32_t inflight, bool prefetch) {
    FakeDaemon daemon;
    daemon.isSlow = true;
    LoopOptions options = alone(20, 1);
    options.inflight = inflight;
    options.prefetch = prefetch;
    Trainer trainer(daemon, options, 400);
    PSD_REQUIRE_OK(trainer.run());
    return daemon.rows;
  };
  // The fake daemon applies a push when it is made, so that only prefetched values are older.
  CHECK(trained(0, false) == trained(3, false));
  CHECK(trained(0, true) == trained(3, true));
  CHECK(trained(0, false) != trained(0, true));
}

TEST_CASE("prefetched rows are those of the next batch, with the values from before this one's push") {
  FakeDaemon daemon;
  LoopOptions options = alone(100, 1);
  options.prefetch = true;
  Trainer trainer(daemon, options, 400);
  PSD_REQUIRE_OK(trainer.run());
  REQUIRE(daemon.pulledRows.size() == 4);  // none for a step that does not follow
  for (size_t i = 0; i < 4; ++i) CHECK(daemon.pulledRows[i] == trainer.recorder.reports[i].rows);
  // The second step's rows were pulled before any push.
  CHECK(trainer.recorder.reports[1].knownRows == 0);
  CHECK(trainer.recorder.reports[2].knownRows > 0);
}

TEST_CASE("a scoring pulls only the rows of its samples, each once") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(100, 1));
  PSD_REQUIRE_OK(trainer.run());
  const auto test = ratings(3600, Split::test);  // 400: more than one batch
  std::set<int64_t> users, items;
  for (uint32_t i = 0; i < test->sampleCount(); ++i) {
    Batch batch;
    static_cast<void>(test->fill(std::vector{i}, batch));  // data in memory is always there
    users.insert(batch.values<int64_t>("user")[0]);
    items.insert(batch.values<int64_t>("item")[0]);
  }
  const size_t rowsBefore = daemon.rows.size();
  Evaluation evaluation(trainer.model, *test);
  PSD_REQUIRE_OK(evaluation.pull(trainer.client));
  CHECK(daemon.pulledRows.back() == users.size() + items.size());
  CHECK(daemon.rows.size() == rowsBefore);
  const auto score = evaluation.score();
  PSD_REQUIRE_OK(score);

  // The score calculated manually, sample by sample.
  double squares = 0;
  for (uint32_t i = 0; i < test->sampleCount(); ++i) {
    Batch batch;
    static_cast<void>(test->fill(std::vector{i}, batch));  // data in memory is always there
    const auto user = daemon.row(0, static_cast<uint64_t>(batch.values<int64_t>("user")[0]));
    const auto item = daemon.row(1, static_cast<uint64_t>(batch.values<int64_t>("item")[0]));
    double rating = daemon.values[0];
    for (size_t d = 0; d < user.size(); ++d) rating += double{user[d]} * item[d];
    squares += std::pow(rating - batch.values<float>("rating")[0], 2);
  }
  CHECK(std::abs(score->loss() - squares / 400) < 1e-5);
}

TEST_CASE("a rejected gradient of a row is explained by its table and id") {
  FakeDaemon daemon;
  Trainer trainer(daemon, alone(20, 1));
  trainer.model.infiniteFromCall = 2;
  const auto summary = trainer.run();
  REQUIRE_FALSE(summary.ok());
  CHECK(summary.error().code == ErrorCode::nonFinite);
  CHECK_THAT(summary.message(),
             Contains("step 2 (epoch 1): the gradient of item holds infinity in the row of id "));
}

TEST_CASE("if the daemon sizes batches, gradients of rows are weighted by it") {
  const auto trained = [](std::vector<uint32_t> tables) {
    FakeDaemon daemon;
    AssignedSamples assigned{.what = AssignedSamples::What::range, .count = 30};
    assigned.unweightedTables = std::move(tables);
    daemon.assignment = {assigned};
    LoopOptions options = alone(10, 1);
    options.assignedSamples = options.autoBatch = true;
    Trainer trainer(daemon, options, 400);
    PSD_REQUIRE_OK(trainer.run());
    return daemon;
  };
  const FakeDaemon plain = trained({}), weighed = trained({FactorModel::kItem});
  REQUIRE(plain.rows.size() == weighed.rows.size());
  for (const auto& [key, row] : plain.rows) {
    std::vector<float> start(row.size());
    plain.tables[key.first].initial.fill(key.second, start);
    const float factor = key.first == FactorModel::kItem ? 3 : 1;
    for (size_t d = 0; d < row.size(); ++d) {
      const float change = weighed.rows.at(key)[d] - start[d];
      CHECK(std::abs(change - factor * (row[d] - start[d])) < 1e-5f);
    }
  }
}

TEST_CASE("with assigned samples a prefetch that finds none is repeated later") {
  FakeDaemon daemon;
  const auto assigned = [](AssignedSamples::What what, uint64_t begin) {
    return AssignedSamples{.what = what, .begin = begin, .count = 20};
  };
  using What = AssignedSamples::What;
  // Asked for step 3 while step 2 computes, the daemon has nothing now; asked again, with a wait, it has.
  daemon.assignment = {assigned(What::range, 0), assigned(What::range, 20), assigned(What::nothingNow, 0),
                       assigned(What::nothingNow, 0), assigned(What::range, 40)};
  LoopOptions options = alone(20, 1);
  options.assignedSamples = options.prefetch = true;
  Trainer trainer(daemon, options, 400);
  PSD_REQUIRE_OK(trainer.run());
  CHECK(daemon.steps == std::vector<uint64_t>{1, 2, 3});
  std::vector<bool> waits;
  for (const SamplesRequest& request : daemon.requests) waits.push_back(request.wait);
  CHECK(waits == std::vector<bool>{false, false, false, false, true, false, false});
}

TEST_CASE("tables are not supported by policies of local steps") {
  FakeDaemon daemon;
  daemon.local.period = 2;
  FakeClient client(daemon);
  FactorModel model;
  const auto train = ratings(400);
  TrainingLoop loop(client, model, *train, alone(20, 1));
  CHECK(loop.join().message() ==
        "the embedding tables of model factors cannot be combined with policy fake, under which trainers "
        "take local "
        "steps");
}

TEST_CASE("batches of rows are reused once they are unreferenced") {
  FakeDaemon daemon;
  FakeClient client(daemon);
  RowBatchPool pool;
  auto first = pool.take(client), second = pool.take(client);
  CHECK(first != second);
  const RowBatch* const freed = first.get();
  first.reset();
  CHECK(pool.take(client).get() == freed);
}

}  // namespace psd::training_loop_rows_test
