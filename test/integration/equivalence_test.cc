// One trainer with a daemon must produce the same result as the same loop in one process with LibTorch's
// optimizer.

#include <cmath>
#include <thread>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/unit/trainer/client/fake_client.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/loop/training_loop.h"
#include "trainer/model/model_list.h"

namespace psd::equivalence_test {
namespace {

constexpr uint64_t kSteps = 60;
constexpr uint64_t kSeed = 7;

/// Replaces daemon and connection: LibTorch's optimizer over one flat tensor. Owned by one thread.
class LibTorchClient final : public Client {
 public:
  using MakeOptimizer =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor> parameters)>;
  explicit LibTorchClient(MakeOptimizer make) : make_(std::move(make)) {}

  Result<JoinInfo> join(const Membership&, const ModelSpec&,
                        const std::function<ConstArenaValues()>& initialValues) override {
    const auto values = initialValues().floats();
    weights_ = torch::empty({static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), weights_.data_ptr<float>());
    optimizer_ = make_({weights_});
    return JoinInfo{true, "one process", "cpu", 1, ""};
  }
  Result<JoinInfo> observe(const ModelSpec&) override { return Error{ErrorCode::notReady, "not a daemon"}; }
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* /*rows*/) override {
    std::copy_n(weights_.data_ptr<float>(), destination.size(), destination.floats().begin());
    return testing::ready<PullInfo>(PullInfo{});
  }
  Pending<PushInfo> push(Step, ConstArenaValues gradient, GradientInfo, const std::vector<Version>&,
                         const RowBatch*) override {
    weights_.mutable_grad() = torch::empty_like(weights_);
    std::ranges::copy(gradient.floats(), weights_.mutable_grad().data_ptr<float>());
    optimizer_->step();
    return testing::ready<PushInfo>(PushInfo{});
  }
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis, const RowBatch* rows) override {
    return std::make_unique<testing::LatePush>(
        [=, this] { return push(step, gradient, behind, basis, rows); });
  }
  Result<PingInfo> ping(uint64_t, uint32_t) override { return PingInfo{}; }
  Status leave() override { return {}; }
  void interrupt() override {}
  uint64_t bytesPulled() const override { return 0; }
  uint64_t bytesPushed() const override { return 0; }

 private:
  MakeOptimizer make_;
  torch::Tensor weights_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// The parameters after kSteps of the mlp on the synthetic set.
std::vector<float> train(Client& client) {
  auto choice = chooseModel("mlp");
  PSD_REQUIRE_OK(choice);
  ModelOptions options;
  options.seed = kSeed;
  auto model = makeModel(*choice, options);
  PSD_REQUIRE_OK(model);
  auto data = makeSynthetic(640, Split::train, kSeed);
  LoopOptions loopOptions;
  loopOptions.steps = kSteps;
  loopOptions.seed = kSeed;
  TrainingLoop loop(client, **model, *data, loopOptions);
  PSD_REQUIRE_OK(loop.join());
  PSD_REQUIRE_OK(loop.run({}, [] { return false; }));
  std::vector<float> values((*model)->parameters().size());
  // The model computes in its own aligned memory; its last pull predates the last push.
  PSD_REQUIRE_OK(client.pull((*model)->parameters()).wait());
  std::copy((*model)->parameters().begin(), (*model)->parameters().end(), values.begin());
  PSD_REQUIRE_OK(client.leave());
  return values;
}

std::vector<float> trainWithDaemon(nlohmann::ordered_json config) {
  testing::LocalServer server(std::move(config));
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 64 << 10;  // several slices per shard
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return train(**client);
}

void requireEqual(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double squares = 0;
  for (float value : expected) squares += double{value} * value;
  const double scale = std::sqrt(squares / static_cast<double>(expected.size()));
  double worst = 0;
  for (size_t i = 0; i < got.size(); i++) {
    const double reference = std::max(std::abs(double{expected[i]}), scale);
    worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}) / reference);
  }
  INFO("largest relative difference " << worst);
  REQUIRE(worst <= 1e-5);
}

constexpr uint32_t kBatch = 32;  // of all trainers together
constexpr uint64_t kRounds = 100;

std::unique_ptr<Model> makeMlp() {
  auto choice = chooseModel("mlp");
  PSD_REQUIRE_OK(choice);
  ModelOptions options;
  options.seed = kSeed;
  auto model = makeModel(*choice, options);
  PSD_REQUIRE_OK(model);
  return std::move(*model);
}

/// `count` samples starting at `begin`, of the kBatch that make up a step.
Batch samplesOf(const Dataset& data, uint64_t step, uint32_t begin, uint32_t count) {
  std::vector<uint32_t> samples(count);
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t place = step * kBatch + begin + i;
    samples[i] = static_cast<uint32_t>(place * 37 % data.sampleCount());
  }
  Batch batch;
  static_cast<void>(data.fill(samples, batch));  // data in memory is always there
  return batch;
}

/// Pulls, computes and pushes kRounds times. Returns the error for the test's own thread to check.
Status trainParts(Client& client, Model& model, const Dataset& data, uint32_t begin, uint32_t count) {
  for (uint64_t step = 1; step <= kRounds; step++) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client.pull(model.parameters()).wait());
    const Batch batch = samplesOf(data, step, begin, count);
    PSD_RETURN_IF_ERROR(model.computeGradients(batch));
    PSD_ASSIGN_OR_RETURN(const PushInfo pushed,
                         client.push(Step{step}, model.gradients(), count, pulled.versions).wait());
    if (pushed.outcome != PushOutcome::applied) return {ErrorCode::internal, "a push was not applied"};
  }
  return client.pull(model.parameters()).wait().status();
}

/// The parameters after this number of trainers, each with its part of every batch, trained in a daemon's
/// rounds.
std::vector<float> trainTogether(uint32_t trainers, int shards, const nlohmann::ordered_json& optimizer) {
  testing::LocalServer server({{"policy", {{"type", "sync"}, {"start_trainers", trainers}}},
                               {"optimizer", optimizer},
                               {"shards", shards},
                               {"threads", 2}});
  auto data = makeSynthetic(640, Split::train, kSeed);
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Status> statuses(trainers);
  for (uint32_t rank = 0; rank < trainers; rank++) {
    models.push_back(makeMlp());
    ClientOptions options;
    options.servers = {server.address()};
    options.chunkBytes = 64 << 10;
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    PSD_REQUIRE_OK((*client)->join({Rank{rank}, trainers}, models[rank]->spec(),
                                   [&] { return std::span<const float>(models[rank]->parameters()); }));
    clients.push_back(std::move(*client));
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trainers; rank++) {
    threads.emplace_back([&, rank] {
      const uint32_t part = kBatch / trainers;
      statuses[rank] = trainParts(*clients[rank], *models[rank], *data, rank * part, part);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) PSD_REQUIRE_OK(status);
  for (auto& client : clients) PSD_REQUIRE_OK(client->leave());
  const auto parameters = models.back()->parameters();
  return {parameters.begin(), parameters.end()};
}

}  // namespace

TEST_CASE("Rounds of two and of four trainers equal one process with the batches put together") {
  LibTorchClient reference([](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  });
  auto model = makeMlp();
  auto data = makeSynthetic(640, Split::train, kSeed);
  PSD_REQUIRE_OK(reference.join({Rank{0}, 1}, model->spec(),
                                [&] { return std::span<const float>(model->parameters()); }));
  PSD_REQUIRE_OK(trainParts(reference, *model, *data, 0, kBatch));
  const std::vector<float> expected(model->parameters().begin(), model->parameters().end());
  for (const uint32_t trainers : {2, 4}) {
    for (int shards : {1, 4}) {
      INFO(trainers << " trainers, " << shards << " shards");
      requireEqual(trainTogether(trainers, shards, {{"type", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}}),
                   expected);
    }
  }
}

TEST_CASE("One trainer equals one process: SGD with momentum") {
  LibTorchClient reference([](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.03).momentum(0.9).weight_decay(1e-4));
  });
  auto expected = train(reference);
  nlohmann::ordered_json optimizer = {
      {"type", "sgd"}, {"lr", 0.03}, {"momentum", 0.9}, {"weight_decay", 1e-4}};
  for (const char* policy : {"hogwild", "locked"}) {
    for (int shards : {1, 3}) {
      INFO("policy " << policy << ", " << shards << " shards");
      requireEqual(
          trainWithDaemon({{"policy", {{"type", policy}}}, {"optimizer", optimizer}, {"shards", shards}}),
          expected);
    }
  }
}

TEST_CASE("One trainer equals one process: Adam") {
  LibTorchClient reference([](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions(1e-3));
  });
  auto expected = train(reference);
  for (const char* policy : {"hogwild", "locked"}) {
    INFO("policy " << policy);
    requireEqual(
        trainWithDaemon(
            {{"policy", {{"type", policy}}}, {"optimizer", {{"type", "adam"}, {"lr", 1e-3}}}, {"shards", 2}}),
        expected);
  }
}

}  // namespace psd::equivalence_test
