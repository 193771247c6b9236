// Embedding tables at an executor: which rows a gradient refers to, where it is sent, and what of it is
// bounded.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/executor_calls.h"
#include "test/integration/local_executor.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/local_servers.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/eval/evaluate.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/remote_client.h"
#include "trainer/executor/remote/remote_model.h"
#include "trainer/executor/remote/remote_steps.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/loop/training_loop.h"
#include "trainer/model/model_list.h"

namespace psd::executor_tables_test {
namespace {

using testing::connectTo;
using testing::joinedTo;
using testing::LocalExecutor;
using testing::LocalServer;
using testing::until;
using Json = nlohmann::ordered_json;

constexpr uint32_t kSamples = 32;
constexpr const char* kFactors = "mf:dim=4,decay=0.125";
constexpr const char* kRatings = "ratings:samples=400,users=20,items=15";

std::unique_ptr<Model> localModel(const std::string& spec) {
  auto choice = chooseModel(spec);
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {});
  PSD_REQUIRE_OK(model);
  return *std::move(model);
}

std::unique_ptr<Client> connectedTo(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return *std::move(client);
}

Batch makeBatch(uint32_t first = 0, const std::string& data = kRatings) {
  const auto opened = openDataset(data, Split::train, {.seed = 1});
  PSD_REQUIRE_OK(opened);
  std::vector<uint32_t> samples(kSamples);
  std::iota(samples.begin(), samples.end(), first);
  Batch batch;
  static_cast<void>((*opened)->fill(samples, batch));  // data in memory is always there
  return batch;
}

std::vector<NamedTensor> inputsOf(const ExecutorConnection& trainer, const Batch& batch) {
  return tensorsOf(batch, trainer.module().inputs);
}

/// Total over the contexts of all trainers.
uint64_t rowsHeld(LocalExecutor& executor) {
  const Json status = executor.status();
  uint64_t rows = 0;
  for (const auto& trainer : status["trainers"]) rows += trainer["rows"].get<uint64_t>();
  return rows;
}

/// The gradients of the outputs for the loss that the executor reports.
std::vector<NamedTensor> lossGradient(const ExecutorConnection& trainer, const ForwardResult& forward,
                                      const Batch& batch) {
  const LossSpec& loss = trainer.module().loss.value();
  const auto target = tensorsOf(batch, std::span(&loss.target, 1)).front();
  auto result = computeLoss(loss, forward.outputs, target);
  PSD_REQUIRE_OK(result);
  return std::move(result->gradients);
}

StepResult trainOnce(ExecutorConnection& trainer, uint64_t context, Step step, const Batch& batch) {
  const auto forward = trainer.forward(context, inputsOf(trainer, batch), true);
  PSD_REQUIRE_OK(forward);
  const auto done = trainer.backwardAndStep(context, lossGradient(trainer, *forward, batch), step, kSamples);
  PSD_REQUIRE_OK(done);
  return *done;
}

/// A local model's pass over the daemon's current parameters and rows.
class LocalPass {
 public:
  LocalPass(const std::string& spec, const LocalServer& server, Batch batch)
      : model_(localModel(spec)), batch_(std::move(batch)), client_(connectedTo(server)) {
    PSD_REQUIRE_OK(client_->observe(model_->spec()));
    rows_ = std::make_unique<RowBatch>(client_->makeRowBatch());
    batch_.rows().lookups = model_->lookUp(batch_, Purpose::training);
    rows_->make(featuresOf(batch_.rows().lookups));
    PSD_REQUIRE_OK(client_->pull(model_->parameters(), rows_.get()).wait());
    bindRows(*rows_, 0, batch_);
  }

  double loss() {
    const auto loss = model_->computeGradients(batch_);
    PSD_REQUIRE_OK(loss);
    return *loss;
  }
  /// The largest difference between the gradients of context `id` and those that loss() computed.
  double differenceOf(ExecutorConnection& trainer, uint64_t id) {
    const auto gradients = trainer.gradients(id);
    PSD_REQUIRE_OK(gradients);
    const ModelSpec& spec = model_->spec();
    REQUIRE(gradients->size() == spec.tensors.size() + 2 * spec.tables.size());
    const ModelLayout layout(spec);
    double worst = 0;
    for (size_t i = 0; i < spec.tensors.size(); i++) {
      const TensorPlace& place = layout.places()[i];
      worst = std::max(worst, difference((*gradients)[i].values<float>(),
                                         model_->gradients().subspan(place.begin, place.count)));
    }
    for (uint32_t table = 0; table < spec.tables.size(); table++) {
      const NamedTensor& of = (*gradients)[spec.tensors.size() + 2 * table];
      const NamedTensor& ids = (*gradients)[spec.tensors.size() + 2 * table + 1];
      CHECK(of.name == spec.tables[table].name);
      CHECK(of.shape == std::vector<uint64_t>{rows_->rowCount(table), rows_->dim(table)});
      CHECK(ids.name == spec.tables[table].name + ".ids");
      // The executor splits its rows by the same shards, so they are in the same order.
      REQUIRE(std::ranges::equal(ids.values<int64_t>(), rows_->ids(table), [](int64_t mine, uint64_t id) {
        return static_cast<uint64_t>(mine) == id;
      }));
      worst = std::max(worst, difference(of.values<float>(), rows_->gradients(table)));
    }
    return worst;
  }

 private:
  static double difference(std::span<const float> a, std::span<const float> b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
    return worst;
  }

  const std::unique_ptr<Model> model_;
  Batch batch_;
  const std::unique_ptr<Client> client_;
  std::unique_ptr<RowBatch> rows_;
};

void requireRefused(const Status& status, ErrorCode code, const std::string& words) {
  INFO(status.message());
  REQUIRE(!status.ok());
  CHECK(status.error().code == code);
  CHECK(status.message().find(words) != std::string::npos);
}

TEST_CASE("A context's gradient is that of the rows that its forward pass saw") {
  const std::string policy = GENERATE("hogwild", "locked");
  const auto [spec, data] = GENERATE(table<std::string, std::string>(
      {{kFactors, kRatings}, {"dlrm:dim=4,hidden=8", "clicks:samples=400,scale=100000"}}));
  LocalServer server(
      Json{{"policy", {{"type", policy}}}, {"optimizer", {{"type", "sgd"}, {"lr", 0.5}}}, {"row_shards", 3}});
  LocalExecutor executor(server.unixAddress(), {{"module", spec}});
  const auto one = joinedTo(executor, 0, 2), other = joinedTo(executor, 1, 2);
  const Batch batch = makeBatch(0, data);
  trainOnce(*other, 1, Step{1}, batch);  // creates the rows
  LocalPass before(spec, server, batch);

  const auto forward = one->forward(7, inputsOf(*one, batch), true);
  PSD_REQUIRE_OK(forward);
  CHECK(rowsHeld(executor) > 10);
  trainOnce(*other, 1, Step{2}, batch);  // changes the rows
  PSD_REQUIRE_OK(one->backward(7, lossGradient(*one, *forward, batch)));
  const double loss = before.loss();
  CHECK(before.differenceOf(*one, 7) < 1e-7);
  const auto remote = computeLoss(*one->module().loss, forward->outputs,
                                  tensorsOf(batch, std::span(&one->module().loss->target, 1)).front());
  PSD_REQUIRE_OK(remote);
  CHECK(std::abs(remote->loss - loss) < 1e-6);
  LocalPass after(spec, server, batch);
  after.loss();
  CHECK(after.differenceOf(*one, 7) > 1e-6);

  const auto step = one->step(7, Step{1}, kSamples);
  PSD_REQUIRE_OK(step);
  CHECK(step->outcome == PushOutcome::applied);
  CHECK(step->staleness == 1);  // the other's step, since the forward pass
  CHECK(rowsHeld(executor) == 0);
}

TEST_CASE("Rows are stashed, though a live context reads the parameters where they are") {
  LocalServer server(Json{{"optimizer", {{"type", "sgd"}, {"lr", 0.5}}}});
  LocalExecutor executor(server.unixAddress(), {{"module", kFactors}, {"weights", "live"}});
  const auto one = joinedTo(executor, 0, 2), other = joinedTo(executor, 1, 2);
  const Batch batch = makeBatch();
  LocalPass before(kFactors, server, batch);
  const auto forward = one->forward(7, inputsOf(*one, batch), true);
  PSD_REQUIRE_OK(forward);
  trainOnce(*other, 1, Step{1}, batch);
  PSD_REQUIRE_OK(one->backward(7, lossGradient(*one, *forward, batch)));
  before.loss();
  // The slope of the mean is the same for every mean, so all of it is unchanged.
  CHECK(before.differenceOf(*one, 7) < 1e-7);
}

/// The result of training: parameters, all rows of the data, and the score of the test set.
struct Trained {
  std::vector<float> values;
  Score score;
};

Trained trainLoop(Client& client, Model& model, const std::string& spec, const std::string& data,
                  const LocalServer& server) {
  const auto train = openDataset(data, Split::train, {.seed = 1}),
             test = openDataset(data, Split::test, {.seed = 1});
  PSD_REQUIRE_OK(train);
  PSD_REQUIRE_OK(test);
  LoopOptions options;
  options.steps = 40;
  options.batchSize = kSamples;
  TrainingLoop loop(client, model, **train, options);
  PSD_REQUIRE_OK(loop.join());
  PSD_REQUIRE_OK(loop.run({}, [] { return false; }));
  Evaluation evaluation(model, **test);
  PSD_REQUIRE_OK(evaluation.pull(client));
  auto score = evaluation.score();
  PSD_REQUIRE_OK(score);

  const auto local = localModel(spec);
  const auto observer = connectedTo(server);
  PSD_REQUIRE_OK(observer->observe(local->spec()));
  std::vector<uint32_t> all((*train)->sampleCount());
  std::iota(all.begin(), all.end(), 0u);
  Batch batch;
  static_cast<void>((*train)->fill(all, batch));  // data in memory is always there
  RowBatch rows = observer->makeRowBatch();
  const auto lookups = local->lookUp(batch, Purpose::scoring);
  rows.make(featuresOf(lookups));
  PSD_REQUIRE_OK(observer->pull(local->parameters(), &rows).wait());
  Trained trained{{local->parameters().begin(), local->parameters().end()}, *std::move(score)};
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> byId;  // shards return them in another order
  for (uint32_t table = 0; table < rows.tableCount(); table++) {
    for (size_t i = 0; i < rows.rowCount(table); i++) {
      const auto row = rows.rows(table).subspan(i * rows.dim(table), rows.dim(table));
      byId[{table, rows.ids(table)[i]}].assign(row.begin(), row.end());
    }
  }
  for (const auto& [id, row] : byId) trained.values.insert(trained.values.end(), row.begin(), row.end());
  PSD_REQUIRE_OK(client.leave());
  return trained;
}

TEST_CASE("One trainer at an executor comes to the parameters and rows of one with its own gradients") {
  const auto [spec, data, metric] = GENERATE(table<std::string, std::string, std::string>(
      {{kFactors, kRatings, "rmse"}, {"dlrm:dim=4,hidden=8", "clicks:samples=400,scale=100000", "auc"}}));
  const Json config{
      {"policy", {{"type", "locked"}}}, {"optimizer", {{"type", "sgd"}, {"lr", 0.2}}}, {"row_shards", 2}};
  LocalServer ownServer(config);
  testing::LocalServers remoteServers(config, GENERATE(1u, 2u));
  const auto client = connectedTo(ownServer);
  const auto model = localModel(spec);
  const Trained own = trainLoop(*client, *model, spec, data, ownServer);

  LocalExecutor executor(remoteServers.lead().unixAddress(), {{"module", spec}});
  auto steps = RemoteSteps::connect({.executor = executor.address()});
  PSD_REQUIRE_OK(steps);
  auto remoteModel = RemoteModel::make(**steps);
  PSD_REQUIRE_OK(remoteModel);
  RemoteClient remoteClient(**steps);
  const Trained remote = trainLoop(remoteClient, **remoteModel, spec, data, remoteServers.lead());

  REQUIRE(remote.values.size() == own.values.size());
  double worst = 0, moved = 0;
  for (size_t i = 0; i < own.values.size(); i++) {
    worst = std::max(worst, std::abs(double{own.values[i]} - remote.values[i]));
    moved = std::max(moved, std::abs(double{own.values[i]}));
  }
  INFO("largest difference " << worst << " of values up to " << moved);
  CHECK(worst <= 1e-6 * std::max(moved, 1.0));
  CHECK(std::abs(remote.score.loss() - own.score.loss()) < 1e-5);
  CHECK(std::abs(remote.score.value(metric) - own.score.value(metric)) < 1e-5);
  CHECK(remote.score.samples == own.score.samples);
}

TEST_CASE("Gradients of some rows are asked for by their table's name") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"module", kFactors}});
  const auto trainer = joinedTo(executor, 0, 1);
  const Batch batch = makeBatch();
  const auto forward = trainer->forward(1, inputsOf(*trainer, batch), true);
  PSD_REQUIRE_OK(forward);
  PSD_REQUIRE_OK(trainer->backward(1, lossGradient(*trainer, *forward, batch)));
  const auto some = trainer->gradients(1, {"item", "mean"});
  PSD_REQUIRE_OK(some);
  REQUIRE(some->size() == 3);
  CHECK(some->at(0).toString().starts_with("item f32["));
  CHECK(some->at(1).toString().starts_with("item.ids i64["));
  CHECK(some->at(2).toString() == "mean f32[1]");
  requireRefused(trainer->gradients(1, {"item.ids"}).status(), ErrorCode::invalidArgument,
                 "no parameter 'item.ids', and no table");
  requireRefused(trainer->step(1, Step{1}, 1, {2}).status(), ErrorCode::invalidArgument,
                 "not for a module with embedding tables");
  PSD_REQUIRE_OK(trainer->drop(1));
}

TEST_CASE("The gradient of a parameter without a part in the outputs is zero, whatever the memory held") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"module", "mf:dim=4,decay=100"}});
  const auto trainer = joinedTo(executor, 0, 1);
  const Batch batch = makeBatch();
  // Reused arrays of gradients.
  for (const uint64_t context : {1, 2, 3}) {
    const auto forward = trainer->forward(context, inputsOf(*trainer, batch), true);
    PSD_REQUIRE_OK(forward);
    PSD_REQUIRE_OK(trainer->backward(context, lossGradient(*trainer, *forward, batch)));
    const auto mean = trainer->gradients(context, {"mean"});
    PSD_REQUIRE_OK(mean);
    REQUIRE(mean->at(0).values<float>()[0] != 0);
  }
  for (const uint64_t context : {1, 2, 3}) PSD_REQUIRE_OK(trainer->drop(context));
  const auto forward = trainer->forward(4, inputsOf(*trainer, batch), true);
  PSD_REQUIRE_OK(forward);
  NamedTensor gradient = forward->outputs.at(0);
  REQUIRE(gradient.name == "penalty");  // the dense parameter does not contribute to it
  std::ranges::fill(gradient.values<float>(), 0.5f);
  PSD_REQUIRE_OK(trainer->backward(4, {gradient}));
  const auto mean = trainer->gradients(4, {"mean"});
  PSD_REQUIRE_OK(mean);
  CHECK(mean->at(0).values<float>()[0] == 0);
}

TEST_CASE("A gradient of rows that is not finite ends its context, and nothing of it is pushed") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"module", "mf:dim=4,decay=100"}});
  const auto trainer = joinedTo(executor, 0, 1);
  const Batch batch = makeBatch();
  const auto forward = trainer->forward(1, inputsOf(*trainer, batch), true);
  PSD_REQUIRE_OK(forward);
  NamedTensor gradient = forward->outputs.at(0);
  REQUIRE(gradient.name == "penalty");  // the dense parameter does not contribute to it
  std::ranges::fill(gradient.values<float>(), std::numeric_limits<float>::max());
  const Status refused = trainer->backward(1, {gradient});
  requireRefused(refused, ErrorCode::nonFinite, "in the row of id");
  CHECK(rowsHeld(executor) == 0);
  CHECK(server.status()["counters"]["gradients"] == 0);
  CHECK(trainOnce(*trainer, 1, Step{1}, batch).outcome == PushOutcome::applied);
}

std::vector<NamedTensor> distinctIds(uint64_t samples) {
  std::vector<NamedTensor> inputs;
  for (const char* name : {"user", "item"}) {
    inputs.push_back({name, ElementType::i64, {samples}, std::vector<std::byte>(samples * sizeof(int64_t))});
    std::iota(inputs.back().values<int64_t>().begin(), inputs.back().values<int64_t>().end(),
              -static_cast<int64_t>(samples / 2));  // any 64 bits are an id
  }
  return inputs;
}

TEST_CASE("Rows of contexts are held within memory_bytes") {
  constexpr uint64_t kMemoryBytes = 4u << 20;
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), {{"module", "mf:dim=255"}, {"memory_bytes", kMemoryBytes}});
  const auto trainer = joinedTo(executor, 0, 1);
  const auto held = [&] { return executor.status()["memory_bytes"].get<uint64_t>(); };
  // 600 rows of 256 values, as many gradients, and a quarter more.
  PSD_REQUIRE_OK(trainer->forward(1, distinctIds(300), true));
  CHECK(held() > 600 * 256 * 4 * 2);
  CHECK(rowsHeld(executor) == 600);
  PSD_REQUIRE_OK(trainer->forward(2, distinctIds(300), true));
  const auto more = trainer->forward(3, distinctIds(300), true);
  requireRefused(more.status(), ErrorCode::overloaded, "rows and their gradients take another");
  CHECK(isRetryable(more.error().code));
  PSD_REQUIRE_OK(trainer->drop(2));
  until([&] { return held() < 2 * 600 * 256 * 4 * 2; });  // the worker may still hold what it computed
  PSD_REQUIRE_OK(trainer->forward(3, distinctIds(300), true));
  for (const uint64_t context : {1, 3}) PSD_REQUIRE_OK(trainer->drop(context));
  until([&] { return held() < 600 * 256 * 4; });
  // A request that can never succeed must not be retried.
  const auto never = trainer->forward(4, distinctIds(30'000), true);
  requireRefused(never.status(), ErrorCode::invalidArgument, "send fewer samples");
  const auto nearly = trainer->forward(4, distinctIds(1'000), true);
  requireRefused(nearly.status(), ErrorCode::invalidArgument, "rows and their gradients take");
  // A repeated id is one row.
  std::vector<NamedTensor> same = distinctIds(20'000);
  for (NamedTensor& each : same) std::ranges::fill(each.values<int64_t>(), 5);
  PSD_REQUIRE_OK(trainer->forward(4, same, true));
  CHECK(rowsHeld(executor) == 2);
  CHECK(server.status()["tables"][0]["rows"] == 0);  // a pull creates none
}

TEST_CASE("A push that the daemon has no room for is refused for good, and the next trainer is served") {
  LocalServer server(
      Json{{"policy", {{"type", "locked"}}}, {"tables", {{{"match", "*"}, {"max_rows", 40}}}}});
  LocalExecutor executor(server.unixAddress(), {{"module", kFactors}});
  const auto trainer = joinedTo(executor, 0, 1);
  const auto forward = trainer->forward(1, distinctIds(300), true);
  PSD_REQUIRE_OK(forward);
  requireRefused(trainer->backwardAndStep(1, forward->outputs, Step{1}, 300).status(),
                 ErrorCode::invalidArgument, "max_rows");
  CHECK_FALSE(isRetryable(ErrorCode::invalidArgument));
  CHECK(rowsHeld(executor) == 0);
  CHECK(trainOnce(*trainer, 1, Step{2}, makeBatch()).outcome == PushOutcome::applied);
}

TEST_CASE("A trainer that reconnects after its rows were lost gets an error") {
  const auto server = std::make_unique<LocalServer>(Json::object());
  LocalServer fresh(Json::object());
  std::vector<uint64_t> daemons;
  {
    LocalExecutor executor(server->unixAddress(), {{"module", kFactors}});
    const auto trainer = connectTo(executor);
    const auto info = trainer->join({Rank{0}, 1}, 5);
    PSD_REQUIRE_OK(info);
    daemons = info->daemons;
    REQUIRE(daemons.size() == 1);
    trainOnce(*trainer, 1, Step{1}, makeBatch());
  }
  LocalExecutor same(server->unixAddress(), {{"module", kFactors}});
  PSD_REQUIRE_OK(connectTo(same)->join({Rank{0}, 1}, 5, daemons));
  LocalExecutor other(fresh.unixAddress(), {{"module", kFactors}});
  requireRefused(connectTo(other)->join({Rank{0}, 1}, 5, daemons).status(), ErrorCode::modelMismatch,
                 "came back without the rows of the embedding tables");
  const std::vector<uint64_t> tooMany(kPartitionsMax + 1, daemons.front());
  requireRefused(connectTo(other)->join({Rank{0}, 1}, 5, tooMany).status(), ErrorCode::invalidArgument,
                 "257 daemon numbers");
  PSD_REQUIRE_OK(connectTo(other)->join({Rank{0}, 1}, 5));  // a trainer without rows to lose
}

}  // namespace
}  // namespace psd::executor_tables_test
