// Embedding tables that admit and evict rows by rules, under every policy and through kill -9.

#include <atomic>
#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"
#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/random.h"
#include "test/support/row_rules_model.h"
#include "test/support/test_device.h"
#include "trainer/client/api/client.h"

namespace psd::table_rules_test {
namespace {

using testing::DaemonProcess;
using testing::LocalServer;
using testing::Random;
using testing::RowRulesModel;
using testing::TempDir;
using By = EvictRule::By;
using Json = nlohmann::ordered_json;

constexpr uint64_t kIds = 1'200;  // that the trainer draws from

const ModelSpec kModel{"rules",
                       {{"bias", DType::f32, {5}}},
                       {{"recent", 4, {RowInitial::Kind::uniform, 0.5f, 3}},
                        {"aged", 3, {RowInitial::Kind::zero, 0, 1}},
                        {"small", 2, {RowInitial::Kind::uniform, 0.5f, 7}}}};
const std::vector<RowRules> kRules = {
    {.rowsMax = 600, .evict = {By::leastRecent}, .admit = {.pushes = 2, .counters = 1 << 20}},
    {.evict = {By::age, 9}, .admit = {.probability = 0.6}},
    {.evict = {By::norm, 4, 2.5}}};
const std::string kTables = R"([
  {"match": "recent", "max_rows": 600, "evict": {"by": "least_recent"},
   "admit": {"after_pushes": 2, "counters": 1048576}},
  {"match": "aged", "evict": {"by": "age", "updates": 9}, "admit": {"probability": 0.6}},
  {"match": "small", "evict": {"by": "norm", "updates": 4, "below": 2.5}}])";

/// The only trainer of the model, initialized with `dense`; the arguments outlive it.
std::unique_ptr<Client> joinAlone(const std::string& address, const std::vector<float>& dense,
                                  ClientOptions options = {}) {
  options.servers = {address};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, kModel, [&dense] { return std::span<const float>(dense); }));
  return *std::move(client);
}

/// A trainer, and the expected content of the tables after its pushes.
class Course {
 public:
  Course(const std::string& address, uint32_t rowShards)
      : model_(kModel.tables, kRules, rowShards), dense_(ModelLayout(kModel).totalElements()) {
    ClientOptions options;
    options.chunkBytes = 2048;  // parts of several slices
    options.retryTimeout = std::chrono::seconds(30);
    client_ = joinAlone(address, dense_, options);
    batch_.emplace(client_->makeRowBatch());
  }

  RowRulesModel& model() { return model_; }

  /// Pulls and pushes some rows, and checks the pulled ones; returns a description of a mismatch, or an empty
  /// string. Uses no Catch2 macros, which another thread may use meanwhile.
  std::string step() {
    draw(random_.between(50, 250));
    const auto pulled = client_->pull(dense_, &*batch_).wait();
    if (!pulled.ok()) return pulled.message();
    if (std::string wrong = difference(); !wrong.empty()) return wrong;
    std::vector<RowRulesModel::Part> parts;
    for (uint32_t table = 0; table < kModel.tables.size(); table++) {
      for (float& value : batch_->gradients(table)) value = static_cast<float>(random_.between(0, 8)) - 4;
      parts.push_back({table, batch_->ids(table), batch_->gradients(table)});
    }
    const std::vector<float> gradient(dense_.size());
    steps_++;
    const auto pushed = client_->push(Step{steps_}, gradient, 1, pulled->versions, &*batch_).wait();
    if (!pushed.ok()) return pushed.message();
    return model_.update(steps_, parts) ? "" : "there is no room for the rows";
  }

  /// Compares all rows that may exist.
  void compareAll() {
    ids_.clear();
    for (uint64_t i = 0; i < kIds; i++) ids_.push_back(idOf(i));
    makeBatch();
    const auto pulled = client_->pull(dense_, &*batch_).wait();
    PSD_REQUIRE_OK(pulled);
    REQUIRE(difference() == "");
    uint64_t known = 0;
    for (uint32_t table = 0; table < kModel.tables.size(); table++) known += model_.rows(table).size();
    CHECK(pulled->knownRows == known);
  }

 private:
  static uint64_t idOf(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }
  void draw(size_t count) {
    ids_.resize(count);
    // Some ids are frequent; any id may occur.
    for (uint64_t& id : ids_) id = idOf(random_.oneIn(2) ? random_.below(kIds / 4) : random_.below(kIds));
    makeBatch();
  }
  void makeBatch() {
    const RowBatch::Feature features[] = {{0, ids_}, {1, ids_}, {2, ids_}};
    batch_->make(features);
  }
  std::string difference() {
    for (uint32_t table = 0; table < kModel.tables.size(); table++) {
      const uint32_t dim = batch_->dim(table);
      for (size_t i = 0; i < batch_->rowCount(table); i++) {
        const auto values = batch_->rows(table).subspan(i * dim, dim);
        if (std::ranges::equal(values, model_.values(table, batch_->ids(table)[i]))) continue;
        return "row " + std::to_string(i) + " of table " + std::to_string(table) + " after step " +
               std::to_string(steps_);
      }
    }
    return "";
  }

  Random random_{17};
  RowRulesModel model_;
  std::unique_ptr<Client> client_;
  std::vector<float> dense_;
  std::optional<RowBatch> batch_;
  std::vector<uint64_t> ids_;
  uint64_t steps_ = 0;
};

Json configOf(const std::string& policy, uint32_t rowShards) {
  return {{"policy", {{"type", policy}}},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"threads", 2},
          {"shards", 1},
          {"row_shards", rowShards},
          {"tables", Json::parse(kTables)}};
}

TEST_CASE("rows are admitted and evicted under each policy that takes updates whole") {
  const std::string policy = GENERATE(as<std::string>(), "locked", "bounded_staleness", "sync");
  INFO(policy);
  const LocalServer server(configOf(policy, 4));
  Course course(server.address(), 4);
  for (int i = 0; i < 40; i++) REQUIRE(course.step() == "");
  course.compareAll();
  uint64_t evicted = 0, notAdmitted = 0;
  const Json tables = server.status()["tables"];
  for (uint32_t table = 0; table < kModel.tables.size(); table++) {
    CHECK(tables[table]["rows"] == course.model().rows(table).size());
    evicted += tables[table]["evicted_rows"].get<uint64_t>();
    notAdmitted += tables[table]["not_admitted_rows"].get<uint64_t>();
  }
  CHECK(evicted == course.model().evicted());
  CHECK(notAdmitted == course.model().notAdmitted());
  CHECK(evicted > 1'000);
  CHECK(notAdmitted > 1'000);
}

TEST_CASE("a daemon that is killed amid evictions comes back with every row as it was, in any row shards") {
  const std::string policy = GENERATE(as<std::string>(), "locked", "sync");
  const auto [first, second] = GENERATE(table<uint32_t, uint32_t>({{4, 2}, {2, 4}}));
  const int fullEvery = GENERATE(1, 4);
  if (testing::testsCuda() && (policy != "locked" || fullEvery == 1)) return;  // they differ only on the host
  INFO(policy << ", " << first << " row shards, then " << second << ", every " << fullEvery << "th full");
  TempDir folder;
  DaemonProcess daemon(folder);
  const auto start = [&](uint32_t rowShards) {
    daemon.start({"policy.type=" + policy, "optimizer.type=sgd", "optimizer.lr=1", "threads=2",
                  "row_shards=" + std::to_string(rowShards), "tables=" + Json::parse(kTables).dump(),
                  R"(durability={"type": "log", "every_updates": 5, "every_seconds": 0, "full_every": )" +
                      std::to_string(fullEvery) + R"(, "path": ")" + folder.file("saved") + "\"}"});
  };
  start(first);
  Course course(daemon.address(), first);
  // At any moment, within a step or between two.
  std::atomic<int> steps{0};
  std::thread killing([&, first = first] {
    for (int life = 1; life <= 3; life++) {
      while (steps < 9 * life) std::this_thread::yield();
      daemon.kill(SIGKILL);
      start(first);
    }
  });
  std::string wrong;
  for (; steps < 36; steps++) {
    if (wrong.empty()) wrong = course.step();
  }
  killing.join();
  REQUIRE(wrong == "");
  course.compareAll();
  daemon.kill(SIGKILL);
  start(second);
  course.model().cut(second);
  course.compareAll();
  for (int i = 0; i < 9; i++) REQUIRE(course.step() == "");
  course.compareAll();
  CHECK(course.model().evicted() > 500);
}

TEST_CASE("hogwild admits and evicts too, and a push to an evicted row creates it again") {
  Json config = configOf("hogwild", 2);
  config["tables"] = Json::parse(R"([{"match": "recent", "max_rows": 40, "evict": {"by": "least_recent"}},
                                     {"match": "aged", "evict": {"by": "age", "updates": 5}},
                                     {"match": "small", "admit": {"after_pushes": 3}}])");
  const LocalServer server(config);
  std::vector<float> dense(ModelLayout(kModel).totalElements());
  const auto joined = joinAlone(server.address(), dense);
  Client& client = *joined;
  RowBatch batch = client.makeRowBatch();
  uint64_t step = 0;
  const auto push = [&](uint64_t first, uint64_t count) {
    std::vector<uint64_t> ids(count);
    for (uint64_t i = 0; i < count; i++) ids[i] = first + i;
    const RowBatch::Feature features[] = {{0, ids}, {1, ids}, {2, ids}};
    batch.make(features);
    const auto pulled = client.pull(dense, &batch).wait();
    PSD_REQUIRE_OK(pulled);
    for (uint32_t table : {0u, 1u, 2u}) std::ranges::fill(batch.gradients(table), -1.f);
    const std::vector<float> gradient(dense.size());
    PSD_REQUIRE_OK(client.push(Step{++step}, gradient, 1, pulled->versions, &batch).wait());
    return server.status()["tables"];
  };
  push(0, 20);
  push(0, 20);
  CHECK(push(0, 20)[2]["rows"] == 20);
  for (uint64_t i = 1; i <= 8; i++) {
    const Json tables = push(1000 * i, 20);
    CHECK(tables[0]["rows"] <= 40);
    CHECK(tables[2]["rows"] == 20);
  }
  const Json tables = push(0, 20);
  CHECK(tables[0]["evicted_rows"] >= 100);
  CHECK(tables[1]["evicted_rows"] >= 60);
  CHECK(tables[2]["not_admitted_rows"] == 40 + 160);
  // The rows of the first steps are evicted from "aged", and are created again by this push; those of "small"
  // stayed.
  PSD_REQUIRE_OK(client.pull(dense, &batch).wait());
  CHECK(std::ranges::all_of(batch.rows(1), [](float value) { return value == 1; }));
  std::vector<float> own(2);
  kModel.tables[2].initial.fill(batch.ids(2)[0], own);
  CHECK(batch.rows(2)[0] == own[0] + 1 + 1);
}

TEST_CASE("a daemon tells which rows were updated most") {
  const LocalServer server(configOf("locked", 2));
  const auto hotRows = [&] {
    auto text = std::async(std::launch::async, [&] {
                  return fetchHotRowsJson(parseAddress(server.address()).value(), std::chrono::seconds(30));
                }).get();
    PSD_REQUIRE_OK(text);
    auto read = readHotRows(Json::parse(*text), "the daemon");
    PSD_REQUIRE_OK(read);
    return *read;
  };
  CHECK(hotRows().tables.empty());
  Course course(server.address(), 2);
  for (int i = 0; i < 20; i++) REQUIRE(course.step() == "");
  const HotRowsStatus hot = hotRows();
  REQUIRE(hot.tables.size() == 3);
  CHECK(hot.tables[0].name == "recent");
  for (const auto& table : hot.tables) {
    REQUIRE(table.rows.size() == 10);
    CHECK(table.rows[0].updates >= table.rows[9].updates);
    CHECK(table.rows[9].updates > 1);
    CHECK(table.rows[0].version <= 20);
  }
  CHECK(hotRowsTable(hot).find("recent") != std::string::npos);
}

TEST_CASE("the rules of a table change while trainers work") {
  Json config = configOf("locked", 1);
  config["tables"] = Json::parse(R"([{"match": "recent", "max_rows": 100}])");
  LocalServer server(config);
  std::vector<float> dense(ModelLayout(kModel).totalElements());
  const auto joined = joinAlone(server.address(), dense);
  Client& client = *joined;
  RowBatch batch = client.makeRowBatch();
  uint64_t step = 0;
  const auto push = [&](uint64_t first) {
    std::vector<uint64_t> ids(80);
    for (uint64_t i = 0; i < ids.size(); i++) ids[i] = first + i;
    const RowBatch::Feature features[] = {{0, ids}};
    batch.make(features);
    const auto pulled = client.pull(dense, &batch).wait();
    PSD_REQUIRE_OK(pulled);
    const std::vector<float> gradient(dense.size());
    return client.push(Step{++step}, gradient, 1, pulled->versions, &batch).wait().status();
  };
  PSD_REQUIRE_OK(push(0));
  CHECK(push(1000).error().code == ErrorCode::overloaded);
  config["tables"][0]["evict"] = {{"by", "least_recent"}};
  PSD_REQUIRE_OK(server.reload(config));
  PSD_REQUIRE_OK(push(2000));
  CHECK(server.status()["tables"][0]["evicted_rows"] == 60);
  config["tables"][0]["admit"] = {{"after_pushes", 2}};
  PSD_REQUIRE_OK(server.reload(config));
  PSD_REQUIRE_OK(push(3000));
  CHECK(server.status()["tables"][0]["not_admitted_rows"] == 80);
  config["tables"][0]["row_steps"] = false;
  CHECK_FALSE(server.reload(config).ok());
}

}  // namespace
}  // namespace psd::table_rules_test
