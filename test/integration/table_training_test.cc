// Models with embedding tables, trained through a daemon: results equal LibTorch's in one process, and reach
// the optimum of the synthetic data.

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/sharder.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/training_loop.h"
#include "trainer/model/model_list.h"

namespace psd::table_training_test {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kSeed = 7;

std::unique_ptr<Dataset> open(const std::string& data, Split split = Split::train) {
  auto opened = openDataset(data, split, {.seed = kSeed});
  PSD_REQUIRE_OK(opened);
  return std::move(*opened);
}

std::unique_ptr<Model> make(const std::string& spec) {
  const auto choice = chooseModel(spec);
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {kSeed, Rank{0}, Device{}, 1});
  PSD_REQUIRE_OK(model);
  return std::move(*model);
}

std::unique_ptr<Client> connectTo(const testing::LocalServer& server) {
  ClientOptions options;
  options.servers = {server.unixAddress()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

/// Trains to the end; returns the error for the test's own thread to check.
Status train(Client& client, Model& model, const Dataset& data, const LoopOptions& options) {
  TrainingLoop loop(client, model, data, options);
  PSD_RETURN_IF_ERROR(loop.join());
  PSD_RETURN_IF_ERROR(loop.run({}, [] { return false; }));
  return client.leave();
}

struct Job {
  std::string model, data;
  LoopOptions options;
  uint32_t trainers = 1;
};

/// The test-set score after training with this number of trainers.
Score scoreAfter(const Json& config, const Job& job) {
  const testing::LocalServer server(config);
  const auto data = open(job.data), test = open(job.data, Split::test);
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Status> statuses(job.trainers);
  for (uint32_t rank = 0; rank < job.trainers; rank++) {
    models.push_back(make(job.model));
    clients.push_back(connectTo(server));
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < job.trainers; rank++) {
    threads.emplace_back([&, rank] {
      LoopOptions options = job.options;
      options.membership = {Rank{rank}, job.trainers};
      options.seed = kSeed;
      statuses[rank] = train(*clients[rank], *models[rank], *data, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) PSD_REQUIRE_OK(status);
  const auto report = evaluateServer(*connectTo(server), *models[0], *test);
  PSD_REQUIRE_OK(report);
  return report->score;
}

/// mf with LibTorch alone: nn::Embedding with sparse gradients, and its optimizers.
class SparseFactors {
 public:
  SparseFactors(const ModelSpec& model, const Dataset& data, double decay)
      : model_(model), data_(data), decay_(decay), mean_(torch::zeros({1}, torch::requires_grad())) {
    std::vector<uint32_t> all(data.sampleCount());
    std::iota(all.begin(), all.end(), 0u);
    Batch batch;
    static_cast<void>(data.fill(all, batch));  // data in memory is always there
    for (size_t table = 0; table < 2; table++) {
      for (const int64_t id : batch.values<int64_t>(kColumns[table])) {
        places_[table].try_emplace(id, static_cast<int64_t>(places_[table].size()));
      }
      tables_[table] = torch::nn::Embedding(
          torch::nn::EmbeddingOptions(static_cast<int64_t>(places_[table].size()), model.tables[table].dim)
              .sparse(true));
      const torch::NoGradGuard noGradients;
      for (const auto& [id, place] : places_[table]) {
        const std::span<float> row(tables_[table]->weight[place].data_ptr<float>(), model.tables[table].dim);
        model.tables[table].initial.fill(static_cast<uint64_t>(id), row);
      }
    }
  }

  std::vector<torch::Tensor> parameters() const { return {mean_, tables_[0]->weight, tables_[1]->weight}; }

  void step(torch::optim::Optimizer& optimizer, std::span<const uint32_t> samples) {
    Batch batch;
    static_cast<void>(data_.fill(samples, batch));  // data in memory is always there
    const torch::Tensor user = rowsOf(batch, 0), item = rowsOf(batch, 1);
    const auto given = batch.values<float>("rating");
    const torch::Tensor rating = torch::tensor(std::vector<float>(given.begin(), given.end()));
    const torch::Tensor error = mean_ + user.select(1, -1) + item.select(1, -1) +
                                (user.slice(1, 0, -1) * item.slice(1, 0, -1)).sum(1) - rating;
    const torch::Tensor penalty = user.pow(2).sum(1) + item.pow(2).sum(1);
    optimizer.zero_grad();
    (error.pow(2) + decay_ * penalty).mean().backward();
    optimizer.step();
  }

  /// The largest difference between any value and the daemon's, relative to the root mean square of all.
  double differenceTo(Client& client) const {
    RowBatch rows = client.makeRowBatch();
    std::vector<uint64_t> ids[2];
    for (size_t table = 0; table < 2; table++) {
      for (const auto& [id, place] : places_[table]) ids[table].push_back(static_cast<uint64_t>(id));
    }
    const RowBatch::Feature features[] = {{0, ids[0]}, {1, ids[1]}};
    rows.make(features);
    std::vector<float> arena(16);
    PSD_REQUIRE_OK(client.pull(arena, &rows).wait());
    double worst = std::abs(arena[0] - mean_.item<float>()), squares = 0, count = 0;
    for (uint32_t table = 0; table < 2; table++) {
      const int64_t dim = rows.dim(table);
      for (size_t i = 0; i < ids[table].size(); i++) {
        const float* const expected = tables_[table]->weight.data_ptr<float>() +
                                      places_[table].at(static_cast<int64_t>(ids[table][i])) * dim;
        const float* const got = rows.rows(table).data() + rows.places(table)[i] * dim;
        for (int64_t d = 0; d < dim; d++, count++) {
          worst = std::max(worst, std::abs(double{expected[d]} - got[d]));
          squares += double{expected[d]} * expected[d];
        }
      }
    }
    return worst / std::sqrt(squares / count);
  }

 private:
  static constexpr const char* kColumns[] = {"user", "item"};

  torch::Tensor rowsOf(const Batch& batch, size_t table) {
    std::vector<int64_t> places;
    for (const int64_t id : batch.values<int64_t>(kColumns[table])) places.push_back(places_[table].at(id));
    return tables_[table](torch::tensor(places));
  }

  const ModelSpec& model_;
  const Dataset& data_;
  const double decay_;
  std::map<int64_t, int64_t> places_[2];
  torch::nn::Embedding tables_[2]{nullptr, nullptr};
  torch::Tensor mean_;
};

constexpr uint32_t kBatch = 32;
constexpr uint64_t kEpochs = 2;

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

void requireEqual(const Json& optimizer, const MakeOptimizer& makeOptimizer) {
  const auto data = open("ratings:samples=2000,users=300,items=200");
  for (const char* const policy : {"locked", "hogwild"}) {
    const testing::LocalServer server(
        {{"policy", {{"type", policy}}}, {"optimizer", optimizer}, {"row_shards", 3}, {"threads", 2}});
    const auto model = make("mf:dim=6,decay=0.02");
    SparseFactors reference(model->spec(), *data, 0.02);
    const auto torchOptimizer = makeOptimizer(reference.parameters());
    const Sharder order(kSeed, static_cast<uint32_t>(data->sampleCount()), Rank{0}, 1);
    for (uint64_t epoch = 0; epoch < kEpochs; epoch++) {
      const std::vector<uint32_t> samples = order.part(epoch);
      for (size_t begin = 0; begin < samples.size(); begin += kBatch) {
        reference.step(*torchOptimizer,
                       std::span(samples).subspan(begin, std::min<size_t>(kBatch, samples.size() - begin)));
      }
    }
    const auto client = connectTo(server), reader = connectTo(server);
    PSD_REQUIRE_OK(train(*client, *model, *data, {.batchSize = kBatch, .epochs = kEpochs, .seed = kSeed}));
    PSD_REQUIRE_OK(reader->observe(model->spec()));
    INFO(policy);
    CHECK(reference.differenceTo(*reader) < 1e-4);
  }
}

/// A predictor that knows the probabilities.
Score teacherOf(const Dataset& clicks) {
  std::vector<uint32_t> all(clicks.sampleCount());
  std::iota(all.begin(), all.end(), 0u);
  Batch batch;
  static_cast<void>(clicks.fill(all, batch));  // data in memory is always there
  const auto labels = batch.values<int64_t>("label");
  const auto probabilities = batch.values<float>("probability");
  double loss = 0;
  Metric auc = Metric::auc("auc");
  for (size_t i = 0; i < labels.size(); i++) {
    loss -= std::log(labels[i] != 0 ? probabilities[i] : 1 - probabilities[i]);
    auc.count(probabilities[i], labels[i] != 0);
  }
  const auto samples = static_cast<double>(labels.size());
  return {labels.size(), {Metric::of("loss", MetricKind::mean, loss, samples), auc}};
}

/// Words of which nine in ten are the successor of the word before the last.
std::string interleavedText(size_t words) {
  Random random(11);
  std::vector<uint32_t> numbers{0, 3};
  while (numbers.size() < words) {
    numbers.push_back(random.below(10) == 0 ? random.below(7) : (numbers[numbers.size() - 2] + 1) % 7);
  }
  std::string text;
  for (const uint32_t number : numbers) text += "w" + std::to_string(number) + " ";
  return text;
}

}  // namespace

TEST_CASE("One trainer of tables equals LibTorch's sparse embeddings in one process: SGD") {
  requireEqual({{"type", "sgd"}, {"lr", 0.3}}, [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.3));
  });
}

TEST_CASE("One trainer of tables equals LibTorch's sparse embeddings in one process: Adagrad") {
  requireEqual({{"type", "adagrad"}, {"lr", 0.05}}, [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters), torch::optim::AdagradOptions(0.05));
  });
}

TEST_CASE("matrix factorisation comes near the noise of made-up ratings, whatever overlaps") {
  for (const auto& [inflight, prefetch, trainers] :
       {std::tuple(0u, false, 2u), {2u, true, 1u}, {1u, true, 2u}}) {
    INFO(inflight << prefetch << trainers);
    const Score score =
        scoreAfter({{"policy", {{"type", "hogwild"}}},
                    {"optimizer", {{"type", "sgd"}, {"lr", 0.8}}},
                    // The mean is in every sample: with larger steps it oscillates
                    // when gradients are late.
                    {"groups", {{{"match", "mean"}, {"optimizer", {{"type", "sgd"}, {"lr", 0.02}}}}}},
                    {"threads", 2}},
                   {"mf:dim=6,decay=0.002",
                    "ratings:samples=20000,users=100,items=60,noise=0.3",
                    {.batchSize = 40, .epochs = 5, .inflight = inflight, .prefetch = prefetch},
                    trainers});
    CHECK(score.samples == 2222);
    // Without the factors 0.74; without the biases 0.5.
    CHECK(score.value("rmse") < 1.2 * 0.3);
    CHECK(score.value("rmse") > 0.9 * 0.3);
  }
}

TEST_CASE("the click model comes near who knows the probabilities") {
  const std::string data = "clicks:samples=30000,scale=1000000";  // categories of 2 to 10 ids
  const Score teacher = teacherOf(*open(data, Split::test));
  const Score score =
      scoreAfter({{"groups",
                   {{{"match", "category*"},
                     {"policy", {{"type", "hogwild"}}},
                     {"optimizer", {{"type", "rowwise_adagrad"}, {"lr", 0.05}}}}}},
                  {"policy", {{"type", "locked"}}},
                  {"optimizer", {{"type", "adagrad"}, {"lr", 0.02}}},
                  {"threads", 2}},
                 {"dlrm:dim=8,hidden=32", data, {.batchSize = 100, .epochs = 4, .prefetch = true}, 2});
  INFO(teacher.toString() << " / " << score.toString());
  CHECK(score.loss() < teacher.loss() + 0.03);
  CHECK(score.loss() > teacher.loss() - 0.01);
  CHECK(score.value("auc") > teacher.value("auc") - 0.035);
}

TEST_CASE("the sampled softmax learns what only a memory can tell") {
  const testing::TempDir folder;
  testing::writeFile(folder.file("text"), interleavedText(6000));
  const Score score =
      scoreAfter({{"policy", {{"type", "locked"}}}, {"optimizer", {{"type", "adam"}, {"lr", 0.01}}}},
                 {"lstm_lm:embedding=8,hidden=24,vocabulary=8,candidates=4",
                  "text:" + folder.file("text") + ":length=20",
                  {.batchSize = 16, .epochs = 24, .inflight = 1}});
  // Words alone, and given the last one, are equally likely: 1.95. Knowing the rule gives 0.52.
  CHECK(score.loss() < 0.75);
}

}  // namespace psd::table_training_test
