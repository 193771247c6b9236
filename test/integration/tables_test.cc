// Embedding tables, from the client library through a daemon to the disk and back.

#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/safetensors/safetensors.h"
#include "common/types/model_layout.h"
#include "server/tools/file_commands.h"
#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/random.h"
#include "test/support/row_ids.h"
#include "test/support/temp_dir.h"
#include "test/support/test_device.h"
#include "trainer/client/api/client.h"

namespace psd::tables_test {
namespace {

using testing::DaemonProcess;
using testing::LocalServer;
using testing::Random;
using testing::TempDir;
using Json = nlohmann::ordered_json;

constexpr uint32_t kItem = 0, kUser = 1;
constexpr uint64_t kIds = 5'000;  // that trainers draw from
const std::vector<std::string> kPolicies = {"hogwild", "locked", "bounded_staleness", "sync"};

ModelSpec modelWith(std::vector<TensorSpec> tensors) {
  return {"tables",
          std::move(tensors),
          {{"item", 8, {RowInitial::Kind::uniform, 0.5f, 3}}, {"user", 3, {RowInitial::Kind::zero, 0, 1}}}};
}
ModelSpec model() { return modelWith({{"bias", DType::f32, {5}}}); }

Json configOf(const std::string& policy, uint32_t rowShards = 3) {
  return {{"policy", {{"type", policy}}},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"threads", 2},
          {"shards", 1},
          {"row_shards", rowShards}};
}

/// The expected rows of both tables: a plain map of all pushes.
class Reference {
 public:
  explicit Reference(const ModelSpec& model) : tables_(model.tables) {}

  std::vector<float>& row(uint32_t table, uint64_t id) {
    auto [place, fresh] = rows_.try_emplace({table, id});
    if (fresh) {
      place->second.resize(tables_[table].dim);
      tables_[table].initial.fill(id, place->second);
    }
    return place->second;
  }
  /// One step of plain SGD with a learning rate of 1.
  void push(const RowBatch& batch) {
    for (uint32_t table = 0; table < batch.tableCount(); table++) {
      for (size_t i = 0; i < batch.rowCount(table); i++) {
        std::vector<float>& values = row(table, batch.ids(table)[i]);
        for (uint32_t d = 0; d < batch.dim(table); d++) {
          values[d] -= batch.gradients(table)[i * batch.dim(table) + d];
        }
      }
    }
  }
  /// Whether the batch holds the rows' values, bit for bit.
  bool equals(const RowBatch& batch) {
    for (uint32_t table = 0; table < batch.tableCount(); table++) {
      for (size_t i = 0; i < batch.rowCount(table); i++) {
        const auto values = batch.rows(table).subspan(i * batch.dim(table), batch.dim(table));
        if (!std::ranges::equal(values, row(table, batch.ids(table)[i]))) return false;
      }
    }
    return true;
  }

 private:
  const std::vector<TableSpec> tables_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows_;
};

std::unique_ptr<Client> connectTo(const std::string& address, uint32_t connections = 1) {
  ClientOptions options;
  options.servers = {address};
  options.connections = connections;
  options.chunkBytes = 4096;  // parts of several slices
  options.retryTimeout = std::chrono::seconds(30);
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

/// A trainer with its dense values, which are zero except for its training.
struct Trainer {
  Trainer(const std::string& address, Rank rank, uint32_t worldSize,
          const ModelSpec& model = tables_test::model(), uint32_t connections = 1)
      : client(connectTo(address, connections)), dense(ModelLayout(model).totalElements()) {
    auto joined = client->join({rank, worldSize}, model, [this] { return std::span<const float>(dense); });
    PSD_REQUIRE_OK(joined);
    batch.emplace(client->makeRowBatch());
  }

  /// Draws some ids of both tables, many of them twice.
  void draw(Random& random, size_t items = 600, size_t users = 50) {
    ids[0].resize(items);
    ids[1].resize(users);
    for (auto& list : ids) {
      for (uint64_t& id : list) id = random.below(kIds) * 0x9e3779b97f4a7c15u;
    }
    const RowBatch::Feature features[] = {{kItem, ids[0]}, {kUser, ids[1]}, {kItem, ids[0]}};
    batch->make(features);
  }
  /// The rows of these ids in both tables.
  void takeBoth(std::vector<uint64_t> rows) {
    ids[0] = std::move(rows);
    const RowBatch::Feature features[] = {{kItem, ids[0]}, {kUser, ids[0]}};
    batch->make(features);
  }
  Result<PullInfo> pull() { return client->pull(dense, &*batch).wait(); }
  /// Pushes small whole numbers, which float32 sums exactly.
  Result<PushInfo> push(Random& random, uint64_t step, const std::vector<Version>& basis) {
    for (uint32_t table : {kItem, kUser}) {
      for (float& value : batch->gradients(table)) value = static_cast<float>(random.between(0, 8)) - 4;
    }
    gradient.assign(dense.size(), 0.f);
    for (int i = 0; i < 5; i++) gradient[i] = 1;
    return client->push(Step{step}, gradient, 1, basis, &*batch).wait();
  }

  std::unique_ptr<Client> client;
  std::vector<float> dense, gradient;
  std::optional<RowBatch> batch;
  std::vector<uint64_t> ids[2];
};

/// All rows that trainers may have drawn.
void drawAll(Trainer& trainer) {
  trainer.ids[0].clear();
  for (uint64_t i = 0; i < kIds; i++) trainer.ids[0].push_back(i * 0x9e3779b97f4a7c15u);
  const RowBatch::Feature features[] = {{kItem, trainer.ids[0]}, {kUser, trainer.ids[0]}};
  trainer.batch->make(features);
}

TEST_CASE("rows are what they begin with until a push, and what pushes made of them then") {
  const std::string policy = GENERATE(from_range(kPolicies));
  INFO(policy);
  const LocalServer server(configOf(policy));
  const bool tablesAlone = GENERATE(false, true);
  const ModelSpec spec = tablesAlone ? modelWith({}) : model();
  const bool ring = GENERATE(false, true);
  const std::string address = ring ? server.unixAddress() : server.address();
  Trainer trainer(address, Rank{0}, 1, spec, GENERATE(1u, 2u));
  Reference reference(spec);
  Random random(7);
  // A device emulated on the CPU takes some milliseconds for each call of a table in a row shard.
  const uint64_t steps = testing::testsCuda() ? 4 : 12;
  for (uint64_t step = 1; step <= steps; step++) {
    trainer.draw(random);
    const auto before = trainer.pull();
    PSD_REQUIRE_OK(before);
    CHECK(before->versions.size() == (tablesAlone ? 3 : 4));
    REQUIRE(reference.equals(*trainer.batch));
    if (tablesAlone) trainer.dense.clear();
    for (uint32_t table : {kItem, kUser}) {
      for (float& value : trainer.batch->gradients(table))
        value = static_cast<float>(random.between(0, 8)) - 4;
    }
    const std::vector<float> gradient(trainer.dense.size());
    const auto pushed =
        trainer.client->push(Step{step}, gradient, 1, before->versions, &*trainer.batch).wait();
    PSD_REQUIRE_OK(pushed);
    CHECK(pushed->outcome == PushOutcome::applied);
    CHECK(pushed->staleness == 0);
    reference.push(*trainer.batch);
  }
  drawAll(trainer);
  const auto all = trainer.pull();
  PSD_REQUIRE_OK(all);
  CHECK(reference.equals(*trainer.batch));
  CHECK(all->knownRows > 0);
  CHECK(all->knownRows < 2 * kIds);
  PSD_REQUIRE_OK(trainer.client->leave());
}

TEST_CASE("a step without rows of some row shards is as fresh as its other parts") {
  const std::string policy = GENERATE(from_range(kPolicies));
  INFO(policy);
  Json config = configOf(policy);
  config["policy"]["staleness"] = {{"max", 0}};
  if (policy == "sync") config["policy"].erase("staleness");
  const LocalServer server(config);
  Trainer trainer(server.address(), Rank{0}, 1);
  Random random(2);
  for (uint64_t step = 1; step <= 4; step++) {
    trainer.takeBoth({testing::idOfHash(step)});  // all in the first row shard
    const auto pulled = trainer.pull();
    PSD_REQUIRE_OK(pulled);
    const auto pushed = trainer.push(random, step, pulled->versions);
    PSD_REQUIRE_OK(pushed);
    CHECK(pushed->outcome == PushOutcome::applied);
    CHECK(pushed->staleness == 0);
  }
  CHECK(server.status()["tables"][0]["rows"] == 4);
}

TEST_CASE("a pull creates no row, and every 64-bit number is an id") {
  const LocalServer server(configOf("hogwild"));
  Trainer trainer(server.address(), Rank{0}, 1);
  std::vector<uint64_t> ids = {0, 1, UINT64_MAX, UINT64_MAX - 1, uint64_t{1} << 63};
  const RowBatch::Feature features[] = {{kItem, ids}};
  for (const uint64_t known : {0u, 0u, 5u}) {
    trainer.batch->make(features);
    const auto pulled = trainer.pull();
    PSD_REQUIRE_OK(pulled);
    CHECK(pulled->knownRows == known);
    CHECK(trainer.batch->rowCount(kUser) == 0);
    if (pulled->knownRows > 0 || server.status()["tables"][0]["pulled_rows"] < 10) continue;
    Random random(1);
    PSD_REQUIRE_OK(trainer.push(random, 1, pulled->versions));
  }
  const Json tables = server.status()["tables"];
  CHECK(tables[0]["name"] == "item");
  CHECK(tables[0]["rows"] == 5);
  CHECK(tables[1]["rows"] == 0);
}

std::vector<std::unique_ptr<Trainer>> trainersOf(const LocalServer& server, uint32_t count) {
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (uint32_t rank = 0; rank < count; rank++) {
    trainers.push_back(std::make_unique<Trainer>(server.address(), Rank{rank}, count));
  }
  return trainers;
}

/// Runs each trainer on a thread of its own. `work(trainer, rank)` must not use Catch macros, which are
/// limited to one thread.
template <class Work>
void runOnThreads(const std::vector<std::unique_ptr<Trainer>>& trainers, const Work& work) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trainers.size(); rank++) {
    threads.emplace_back([&, rank] { work(*trainers[rank], rank); });
  }
  for (auto& thread : threads) thread.join();
}

/// A step of a round: one trainer has rows 1 and 2 and one of four samples, the other rows 2 and 3 and three
/// samples. `after`: the resulting first values of rows 1, 2 and 3.
Status pushToRound(Trainer& trainer, uint32_t rank, std::vector<float>& after) {
  const std::vector<uint64_t> own = rank == 0 ? std::vector<uint64_t>{1, 2} : std::vector<uint64_t>{2, 3};
  const RowBatch::Feature features[] = {{kUser, own}};
  trainer.batch->make(features);
  PSD_ASSIGN_OR_RETURN(const auto pulled, trainer.pull());
  std::ranges::fill(trainer.batch->gradients(kUser), rank == 0 ? 4.f : 8.f);
  const std::vector<float> gradient(trainer.dense.size());
  const auto pushed =
      trainer.client->push(Step{1}, gradient, rank == 0 ? 1 : 3, pulled.versions, &*trainer.batch).wait();
  if (!pushed.ok()) return pushed.error();
  const std::vector<uint64_t> all = {1, 2, 3};
  const RowBatch::Feature everything[] = {{kUser, all}};
  trainer.batch->make(everything);
  const auto again = trainer.pull();
  if (!again.ok()) return again.error();
  after.resize(all.size());
  for (size_t i = 0; i < all.size(); i++) {
    after[trainer.batch->ids(kUser)[i] - 1] = trainer.batch->rows(kUser)[i * 3];
  }
  return {};
}

TEST_CASE("rows of rounds are the weighted mean over the trainers, one without a row counts as zero") {
  Json config = configOf("sync");
  config["policy"]["start_trainers"] = 2;
  const LocalServer server(config);
  std::vector<Status> ends(2);
  std::vector<std::vector<float>> after(2);
  runOnThreads(trainersOf(server, 2), [&](Trainer& trainer, uint32_t rank) {
    ends[rank] = pushToRound(trainer, rank, after[rank]);
  });
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
  for (const auto& values : after) CHECK(values == std::vector<float>{-1, -7, -6});
}

/// Work of racing trainers: each has rows of its own in every step, and some that all share.
Status race(Trainer& trainer, uint32_t rank, uint64_t steps, std::span<const uint64_t> common) {
  const std::vector<float> gradient(trainer.dense.size());
  for (uint64_t step = 1; step <= steps; step++) {
    std::vector<uint64_t> own(100);
    for (size_t i = 0; i < own.size(); i++) own[i] = step * 1000 + i * 2 + rank;
    const RowBatch::Feature features[] = {{kUser, own}, {kUser, common}};
    trainer.batch->make(features);
    PSD_ASSIGN_OR_RETURN(const auto pulled, trainer.pull());
    std::ranges::fill(trainer.batch->gradients(kUser), -1.f);
    const auto pushed =
        trainer.client->push(Step{step}, gradient, 1, pulled.versions, &*trainer.batch).wait();
    if (!pushed.ok()) return pushed.error();
  }
  return {};
}

TEST_CASE("trainers that race lose no row under a lock, and none at all whatever the policy") {
  const std::string policy = GENERATE(as<std::string>(), "hogwild", "locked", "bounded_staleness");
  INFO(policy);
  constexpr uint64_t kSteps = 40;
  std::vector<uint64_t> common(20);
  for (size_t i = 0; i < common.size(); i++) common[i] = 1'000'000 + i;
  const LocalServer server(configOf(policy));
  std::vector<Status> ends(2);
  runOnThreads(trainersOf(server, 2),
               [&](Trainer& trainer, uint32_t rank) { ends[rank] = race(trainer, rank, kSteps, common); });
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
  CHECK(server.status()["tables"][1]["rows"] == 2 * kSteps * 100 + 20);
  Trainer reader(server.address(), Rank{0}, 2);
  const RowBatch::Feature features[] = {{kUser, common}};
  reader.batch->make(features);
  PSD_REQUIRE_OK(reader.pull());
  for (const float value : reader.batch->rows(kUser)) {
    if (policy == "hogwild") {
      CHECK(value > 0);  // of two racing updates one may be lost
    } else {
      CHECK(value == 2 * kSteps);
    }
  }
}

TEST_CASE("a push of more rows than a table may hold is refused, and nothing of it is applied") {
  const std::string policy = GENERATE(as<std::string>(), "hogwild", "locked");
  Json config = configOf(policy, 1);
  config["tables"] = Json::parse(R"([{"match": "item", "max_rows": 10}])");
  const LocalServer server(config);
  Trainer trainer(server.address(), Rank{0}, 1);
  Random random(3);
  trainer.takeBoth({1, 2, 3, 4, 5, 6, 7, 8});
  auto pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  PSD_REQUIRE_OK(trainer.push(random, 1, pulled->versions));
  trainer.takeBoth({7, 8, 9, 10, 11});
  const auto refused = trainer.push(random, 2, pulled->versions);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("max_rows") != std::string::npos);
  const Json tables = server.status()["tables"];
  CHECK(tables[0]["rows"] == 8);
  CHECK(tables[1]["rows"] == 8);
}

TEST_CASE("a round whose rows find no room leaves nothing behind, in no block") {
  Json config = configOf("sync", 2);
  config["tables"] = Json::parse(R"([{"match": "item", "max_rows": 20}])");  // ten in each row shard
  const LocalServer server(config);
  Trainer trainer(server.address(), Rank{0}, 1);
  Random random(3);
  const auto idsOf = [](std::vector<uint64_t> hashes) {
    for (uint64_t& hash : hashes) hash = testing::idOfHash(hash);
    return hashes;
  };
  trainer.takeBoth(idsOf({0, 1, 2}));
  auto pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  PSD_REQUIRE_OK(trainer.push(random, 1, pulled->versions));
  std::vector<uint64_t> hashes = {0, 1, 2, 3, 4};  // these fit; eleven in the other row shard do not
  for (uint64_t i = 0; i < 11; i++) hashes.push_back(UINT64_MAX - i);
  trainer.takeBoth(idsOf(hashes));
  pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  const std::vector<float> before = trainer.dense;
  const auto refused = trainer.push(random, 2, pulled->versions);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  const Json tables = server.status()["tables"];
  CHECK(tables[0]["rows"] == 3);
  CHECK(tables[1]["rows"] == 3);
  PSD_REQUIRE_OK(trainer.pull());
  CHECK(trainer.dense == before);
  // A round that fits is applied, though one of the row shards has no rows of it.
  trainer.takeBoth(idsOf({0, 1, 2, 3, 4}));
  pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  const auto pushed = trainer.push(random, 3, pulled->versions);
  PSD_REQUIRE_OK(pushed);
  CHECK(pushed->outcome == PushOutcome::applied);
  CHECK(server.status()["tables"][0]["rows"] == 5);
}

TEST_CASE("pulls of rows that wait leave room for the pushes that they wait for") {
  Json config = configOf("bounded_staleness", 1);
  config["policy"]["bound"] = 0;
  config["limits"] = {{"slice_bytes", 65536}, {"message_bytes", 81920}, {"in_flight_bytes", 81920}};
  const LocalServer server(config);
  Trainer fast(server.address(), Rank{0}, 2), slow(server.address(), Rank{1}, 2);
  Random random(3);
  std::vector<uint64_t> ids(20'000);
  for (uint64_t& id : ids) id = random.engine()();
  fast.takeBoth(ids);
  slow.takeBoth(ids);
  const auto first = fast.pull(), other = slow.pull();
  PSD_REQUIRE_OK(first);
  PSD_REQUIRE_OK(other);
  PSD_REQUIRE_OK(fast.push(random, 1, first->versions));
  auto waits = fast.client->pull(fast.dense, &*fast.batch);  // several slices at a time
  server.statusWhen([](const Json& status) { return status["trainers"][0]["waits_for"] == "pull"; });
  PSD_REQUIRE_OK(slow.push(random, 1, other->versions));
  PSD_REQUIRE_OK(waits.wait());
}

TEST_CASE("a trainer with another table is refused, in a line that names it") {
  const LocalServer server(configOf("hogwild"));
  const Trainer first(server.address(), Rank{0}, 2);
  const auto refused = [&](const std::function<void(TableSpec&)>& change) {
    ModelSpec other = model();
    change(other.tables[kItem]);
    const std::vector<float> dense(ModelLayout(other).totalElements());
    const auto joined =
        connectTo(server.address())->join({Rank{1}, 2}, other, [&] { return std::span(dense); });
    REQUIRE_FALSE(joined.ok());
    CHECK(errorCodeName(joined.error().code) == errorCodeName(ErrorCode::modelMismatch));
    return joined.message();
  };
  CHECK(refused([](TableSpec& table) { table.dim = 9; }).find("table 0 is item rows[9]") !=
        std::string::npos);
  CHECK(refused([](TableSpec& table) { table.initial.seed = 4; }).find("seed 4") != std::string::npos);
  CHECK(refused([](TableSpec& table) { table.name = "film"; }).find("film") != std::string::npos);
}

TEST_CASE("a table whose rows fit into no slice is refused by its name") {
  Json config = configOf("hogwild");
  config["limits"] = {{"slice_bytes", 4096}};
  const LocalServer server(config);
  ModelSpec wide = model();
  wide.tables[1].dim = 2000;
  const auto client = connectTo(server.address());
  const std::vector<float> dense(ModelLayout(wide).totalElements());
  const auto joined = client->join({Rank{0}, 1}, wide, [&] { return std::span<const float>(dense); });
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.message().find("limits.slice_bytes: a row of table 'user' takes 8016 bytes with its id, and "
                              "slice_bytes is 4096") != std::string::npos);
}

TEST_CASE("rows go through codecs that suit them") {
  Json config = configOf("locked");
  const std::string codec = GENERATE(as<std::string>(), "fp16", "bf16", "int8", "topk");
  config["codecs"] = {{"push", {{"default", codec}}},
                      {"pull", {{"default", codec == "topk" ? "none" : codec}}}};
  const LocalServer server(config);
  Trainer trainer(server.address(), Rank{0}, 1);
  Reference reference(model());
  Random random(5);
  for (uint64_t step = 1; step <= 5; step++) {
    trainer.draw(random, 40, 10);
    const auto pulled = trainer.pull();
    PSD_REQUIRE_OK(pulled);
    const auto pushed = trainer.push(random, step, pulled->versions);
    PSD_REQUIRE_OK(pushed);
    uint64_t rowBytes = 0;  // as float32
    for (const uint32_t table : {kItem, kUser}) rowBytes += trainer.batch->rows(table).size_bytes();
    CHECK((pulled->bytes < rowBytes) == (codec != "topk"));
    CHECK((pushed->bytes < rowBytes) == (codec != "topk"));
    reference.push(*trainer.batch);
  }
  trainer.draw(random, 40, 10);
  PSD_REQUIRE_OK(trainer.pull());
  for (size_t i = 0; i < trainer.batch->rowCount(kItem); i++) {
    const auto row = trainer.batch->rows(kItem).subspan(i * 8, 8);
    for (size_t d = 0; d < 8; d++) {
      CHECK(std::abs(row[d] - reference.row(kItem, trainer.batch->ids(kItem)[i])[d]) < 0.25);
    }
  }
}

/// Trains for some steps, and makes the daemon save rows that are being changed.
void train(Trainer& trainer, Reference& reference, Random& random, uint64_t from, uint64_t to) {
  for (uint64_t step = from; step <= to; step++) {
    trainer.draw(random);
    const auto pulled = trainer.pull();
    PSD_REQUIRE_OK(pulled);
    REQUIRE(reference.equals(*trainer.batch));
    PSD_REQUIRE_OK(trainer.push(random, step, pulled->versions));
    reference.push(*trainer.batch);
  }
}

TEST_CASE("a daemon that is killed comes back with every row that a push was answered for") {
  const std::string policy = GENERATE(as<std::string>(), "hogwild", "locked", "sync");
  const auto [first, second] = GENERATE(table<int, int>({{2, 5}, {3, 3}, {4, 3}}));
  if (testing::testsCuda() && first > 2) return;  // the number of row shards does not depend on the device
  INFO(policy << ", " << first << " row shards, then " << second);
  TempDir folder;
  DaemonProcess daemon(folder);
  const auto settings = [&](int rowShards) {
    return std::vector<std::string>{
        "policy.type=" + policy,
        "optimizer.type=sgd",
        "optimizer.lr=1",
        "threads=2",
        "row_shards=" + std::to_string(rowShards),
        R"(durability={"type": "log", "every_updates": 11, "every_seconds": 0, "path": ")" +
            folder.file("saved") + "\"}"};
  };
  daemon.start(settings(first));
  Reference reference(model());
  Random random(11);
  Trainer trainer(daemon.address(), Rank{0}, 1);
  train(trainer, reference, random, 1, 25);
  daemon.kill(SIGKILL);
  daemon.start(settings(first));
  train(trainer, reference, random, 26, 40);
  daemon.kill(SIGKILL);
  daemon.start(settings(second));  // other row shards: the log is replayed into the old ones first
  train(trainer, reference, random, 41, 50);
  drawAll(trainer);
  PSD_REQUIRE_OK(trainer.pull());
  CHECK(reference.equals(*trainer.batch));
}

TEST_CASE("trainers do not silently continue when a daemon restarts without its rows") {
  TempDir folder;
  DaemonProcess daemon(folder);
  daemon.start({"policy.type=locked"});
  Trainer trainer(daemon.address(), Rank{0}, 1);
  Random random(1);
  trainer.draw(random);
  const auto pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  PSD_REQUIRE_OK(trainer.push(random, 1, pulled->versions));
  daemon.kill(SIGKILL);
  daemon.start({"policy.type=locked"});
  const auto lost = trainer.pull();
  REQUIRE_FALSE(lost.ok());
  CHECK(lost.error().code == ErrorCode::modelMismatch);
  CHECK(lost.message().find("without the rows") != std::string::npos);
}

TEST_CASE("a table's rows and their optimizer state go from a checkpoint into a file that others read") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const std::vector<std::string> settings = {
      "policy.type=locked", "optimizer.type=adam", "row_shards=3",
      R"(durability={"type": "checkpoint", "path": ")" + folder.file("saved") + "\"}"};
  daemon.start(settings);
  std::vector<float> before;
  {
    Trainer trainer(daemon.address(), Rank{0}, 1);
    Random random(1);
    for (uint64_t step = 1; step <= 5; step++) {
      trainer.draw(random);
      const auto pulled = trainer.pull();
      PSD_REQUIRE_OK(pulled);
      PSD_REQUIRE_OK(trainer.push(random, step, pulled->versions));
    }
    drawAll(trainer);
    PSD_REQUIRE_OK(trainer.pull());
    before.assign(trainer.batch->rows(kItem).begin(), trainer.batch->rows(kItem).end());
  }
  daemon.kill(SIGTERM);
  const auto env = makePosixEnv();
  PSD_REQUIRE_OK(exportModel(*env, folder.file("saved"), "item", folder.file("item.safetensors")));
  CHECK(
      exportModel(*env, folder.file("saved"), "items", folder.file("x")).message().find("no table 'items'") !=
      std::string::npos);
  const auto file = SafetensorsReader::open(*env, folder.file("item.safetensors"),
                                            SafetensorsReader::Takes::floatsAndIntegers);
  PSD_REQUIRE_OK(file);
  std::vector<uint64_t> keys(file->model().tensors[*file->find("keys")].elementCount());
  std::vector<float> values(keys.size() * 8);
  PSD_REQUIRE_OK(file->read(*file->find("keys"), 0, keys));
  PSD_REQUIRE_OK(file->read(*file->find("values"), 0, values));
  daemon.start(settings);
  Trainer trainer(daemon.address(), Rank{0}, 1);
  drawAll(trainer);
  const auto pulled = trainer.pull();
  PSD_REQUIRE_OK(pulled);
  CHECK(std::ranges::equal(trainer.batch->rows(kItem), before));
  const auto ids = trainer.batch->ids(kItem);
  for (size_t i = 0; i < keys.size(); i++) {
    const auto at = static_cast<size_t>(std::ranges::find(ids, keys[i]) - ids.begin());
    REQUIRE(at < ids.size());
    REQUIRE(std::ranges::equal(std::span(values).subspan(i * 8, 8),
                               trainer.batch->rows(kItem).subspan(at * 8, 8)));
  }
}

}  // namespace
}  // namespace psd::tables_test
