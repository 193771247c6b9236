// Raw calls with rows of embedding tables: what is rejected, and that nothing of it is applied.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/os/shared_memory.h"
#include "server/config/daemon_config.h"
#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/row_ids.h"

namespace psd::tables_protocol_test {
namespace {

using testing::idOfHash;
using testing::LocalServer;
using testing::RawPeer;

const ModelSpec kModel{"rows", {}, {{"a", 4, {RowInitial::Kind::zero, 0, 1}}, {"b", 2, {}}}};
const uint64_t kLow = idOfHash(5), kHigh = idOfHash(UINT64_MAX - 5);  // in the first and the second row shard

nlohmann::ordered_json config(const std::string& policy) {
  return {{"policy", {{"type", policy}}},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"threads", 1},
          {"row_shards", 2},
          {"limits", {{"slice_bytes", 65536}}}};
}

void checkRefused(const Status& status, ErrorCode code, const std::string& words = "") {
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == code);
  CHECK_THAT(status.message(), Catch::Contains(words));
}

/// A slice of rows as encoded in a message.
struct Rows {
  uint64_t step = 1;
  uint32_t shard = 0, parts = 2;
  uint64_t first = 0, total = 1;
  std::vector<RowRun> runs = {{0, 1}};
  std::vector<uint64_t> ids = {kLow};
  std::vector<float> gradient = std::vector<float>(4, 1.f);
  size_t idBytesLess = 0;
  uint64_t at = 0;  // in the ring, if values go through it
};

constexpr uint64_t kRingBytes = 16 << 10;

/// A raw trainer of kModel that makes arbitrary calls. Owned by one thread.
class RowTrainer {
 public:
  RowTrainer(kj::AsyncIoContext& io, const LocalServer& server) : peer_(io, server.unixAddress()) {
    auto request = peer_.training().joinRequest();
    request.setWorldSize(1);
    wire::writeModel(kModel, request.initModel());
    auto answer = peer_.wait(request.send().dropPipeline());
    REQUIRE(answer.isJoined());
    REQUIRE(answer.getJoined().getMustInitialize());
    REQUIRE(answer.getJoined().getAccess().getRowShards().size() == 2);
    session_ = kj::heap<schema::Trainer::Client>(answer.getJoined().getSession());
    PSD_REQUIRE_OK(
        wire::readStatus(peer_.wait(session_->initializedRequest().send().dropPipeline()).getStatus()));
  }

  void openRing() {
    auto request = session_->openRingRequest();
    request.setBytes(kRingBytes);
    auto answer = peer_.wait(request.send().dropPipeline());
    REQUIRE(answer.isMemory());
    auto memory = answer.getMemory();
    kj::Maybe<int> fd = peer_.wait(memory.getFd());
    ring_ = SharedMemory::open(fd.orDefault(-1), kRingBytes, SharedAccess::readWrite).value();
  }
  std::span<float> ring() { return {reinterpret_cast<float*>(ring_->data()), kRingBytes / sizeof(float)}; }

  Status push(const Rows& rows) {
    auto request = session_->pushRowsRequest();
    describe(request.initHead(), rows);
    write(request, rows);
    request.setGradient(testing::dataOf(rows.gradient));
    auto answer = peer_.wait(request.send().dropPipeline());
    return answer.isError() ? testing::statusFrom(answer.getError()) : Status();
  }
  Status pushShared(const Rows& rows) {
    auto request = session_->pushRowsSharedRequest();
    describe(request.initHead(), rows);
    write(request, rows);
    request.setAt(rows.at);
    auto answer = peer_.wait(request.send().dropPipeline());
    return answer.isError() ? testing::statusFrom(answer.getError()) : Status();
  }
  Status pullShared(const Rows& rows) {
    auto request = session_->pullRowsSharedRequest();
    request.setShard(rows.shard);
    write(request, rows);
    request.setAt(rows.at);
    auto answer = peer_.wait(request.send().dropPipeline());
    return answer.isError() ? testing::statusFrom(answer.getError()) : Status();
  }
  /// The empty part of the other row shard, which completes the step.
  Status pushNothing(uint64_t step, uint32_t shard) {
    return push({.step = step, .shard = shard, .total = 0, .runs = {}, .ids = {}, .gradient = {}});
  }
  Result<std::vector<float>> pull(const Rows& rows) {
    auto request = session_->pullRowsRequest();
    request.setPull(1);
    request.setShard(rows.shard);
    write(request, rows);
    auto answer = peer_.wait(request.send().dropPipeline());
    if (answer.isError()) return testing::statusFrom(answer.getError()).error();
    const auto values = wire::floatsIn(answer.getRows().getValues());
    return std::vector<float>(values->begin(), values->end());
  }

 private:
  static void describe(schema::PushHead::Builder head, const Rows& rows) {
    head.setStep(rows.step);
    head.setShard(rows.shard);
    head.setOffset(rows.first);
    head.setTotal(rows.total);
    head.setSamples(1);
    head.setParts(rows.parts);
  }
  template <class Request>
  static void write(Request& request, const Rows& rows) {
    wire::writeRuns(rows.runs, request.initRuns(static_cast<kj::uint>(rows.runs.size())));
    request.setIds({reinterpret_cast<const kj::byte*>(rows.ids.data()),
                    rows.ids.size() * sizeof(uint64_t) - rows.idBytesLess});
  }

  RawPeer peer_;
  kj::Own<schema::Trainer::Client> session_;
  std::shared_ptr<SharedMemory> ring_;
};

struct Wrong {
  const char* what;  // expected in the answer
  ErrorCode code;
  std::function<void(Rows&)> spoil;
};

const Wrong kWrong[] = {
    {"8-byte ids", ErrorCode::badSlice, [](Rows& rows) { rows.idBytesLess = 3; }},
    {"2 runs of 1 ids", ErrorCode::badSlice,
     [](Rows& rows) {
       rows.runs = {{0, 1}, {1, 0}};
     }},
    {"cover 2 ids, not the 1 ids given", ErrorCode::badSlice,
     [](Rows& rows) {
       rows.runs = {{0, 2}};
     }},
    {"table 7 is not in it", ErrorCode::badSlice,
     [](Rows& rows) {
       rows.runs = {{7, 1}};
     }},
    {"has the hash", ErrorCode::badSlice, [](Rows& rows) { rows.ids = {kHigh}; }},
    {"the row shards are 0 to 1", ErrorCode::badSlice, [](Rows& rows) { rows.shard = 2; }},
    {"20000 ids; limits.slice_bytes allows 8192", ErrorCode::badSlice,
     [](Rows& rows) {
       rows.ids.assign(20'000, kLow);
       rows.runs = {{0, 20'000}};
     }},
};

TEST_CASE("Tables: invalid rows are rejected in pulls and pushes, and change nothing") {
  const LocalServer server(config(GENERATE(as<std::string>(), "hogwild", "locked", "sync")));
  auto io = kj::setupAsyncIo();
  RowTrainer trainer(io, server);
  for (const Wrong& wrong : kWrong) {
    INFO(wrong.what);
    Rows rows;
    wrong.spoil(rows);
    checkRefused(trainer.push(rows), wrong.code, wrong.what);
    checkRefused(trainer.pull(rows).status(), wrong.code, wrong.what);
  }
  const std::pair<const char*, std::function<void(Rows&)>> pushed[] = {
      {"a gradient of 3 values, and the rows have 4", [](Rows& rows) { rows.gradient.resize(3); }},
      {"and the part has 1", [](Rows& rows) { rows.first = 1; }},
      {"a slice without rows, and the part has 1",
       [](Rows& rows) { rows.runs.clear(), rows.ids.clear(), rows.gradient.clear(); }},
      {"expected one per shard, 2", [](Rows& rows) { rows.parts = 1; }},
  };
  for (const auto& [what, spoil] : pushed) {
    INFO(what);
    Rows rows;
    spoil(rows);
    checkRefused(trainer.push(rows), ErrorCode::badSlice, what);
  }
  Rows notFinite;
  notFinite.gradient[2] = INFINITY;
  checkRefused(trainer.push(notFinite), ErrorCode::nonFinite);
  CHECK(server.status()["tables"][0]["rows"] == 0);
  PSD_REQUIRE_OK(trainer.push({}));
  PSD_REQUIRE_OK(trainer.pushNothing(1, 1));
  CHECK(trainer.pull({}).value() == std::vector<float>(4, -1.f));
}

TEST_CASE("Tables: invalid rows in the ring are rejected, and change nothing") {
  const LocalServer server(config(GENERATE(as<std::string>(), "hogwild", "locked", "sync")));
  auto io = kj::setupAsyncIo();
  RowTrainer trainer(io, server);
  checkRefused(trainer.pushShared({}), ErrorCode::invalidArgument, "this trainer has not opened a ring");
  checkRefused(trainer.pullShared({}), ErrorCode::invalidArgument, "this trainer has not opened a ring");
  trainer.openRing();
  std::ranges::fill(trainer.ring(), 1.f);
  for (const Wrong& wrong : kWrong) {
    INFO(wrong.what);
    Rows rows;
    wrong.spoil(rows);
    // A slice that claims more values than the ring has is rejected for that.
    const bool large = rows.ids.size() * 4 * sizeof(float) > kRingBytes;
    checkRefused(trainer.pushShared(rows), wrong.code, large ? "of the ring" : wrong.what);
    checkRefused(trainer.pullShared(rows), wrong.code, wrong.what);
  }
  Rows many;
  many.runs = {{0, UINT32_MAX}, {0, UINT32_MAX}};
  many.ids = {kLow, kLow};
  checkRefused(trainer.pushShared(many), ErrorCode::badSlice);
  checkRefused(trainer.pullShared(many), ErrorCode::badSlice);
  for (const uint64_t at : {uint64_t{4}, kRingBytes, kRingBytes + 64, UINT64_MAX, UINT64_MAX - 63}) {
    INFO(at);
    checkRefused(trainer.pushShared({.at = at}), ErrorCode::badSlice, "of the ring");
    checkRefused(trainer.pullShared({.at = at}), ErrorCode::badSlice, "of the ring");
  }
  checkRefused(trainer.pushShared({.first = 1}), ErrorCode::badSlice, "and the part has 1");
  trainer.ring()[2] = INFINITY;
  checkRefused(trainer.pushShared({}), ErrorCode::nonFinite);
  trainer.ring()[2] = 1;
  CHECK(server.status()["tables"][0]["rows"] == 0);
  CHECK(std::ranges::count(trainer.ring(), 1.f) == std::ssize(trainer.ring()));
}

TEST_CASE("Tables: rows go through the ring where the call says, and nothing beside them is written") {
  const LocalServer server(config(GENERATE(as<std::string>(), "hogwild", "locked", "sync")));
  auto io = kj::setupAsyncIo();
  RowTrainer trainer(io, server);
  trainer.openRing();
  const uint64_t last = kRingBytes - 64;
  std::ranges::fill(trainer.ring(), 7.f);
  for (float& value : trainer.ring().subspan(last / sizeof(float), 4)) value = 1;
  PSD_REQUIRE_OK(trainer.pushShared({.at = last}));
  PSD_REQUIRE_OK(trainer.pushShared({.shard = 1, .total = 0, .runs = {}, .ids = {}}));
  CHECK(trainer.pull({}).value() == std::vector<float>(4, -1.f));
  Rows two{.runs = {{0, 1}, {1, 1}}, .ids = {kLow, kLow}, .at = 128};
  PSD_REQUIRE_OK(trainer.pullShared(two));
  two.at = 0;
  const auto inMessage = trainer.pull(two).value();
  REQUIRE(inMessage.size() == 6);
  CHECK(std::ranges::equal(trainer.ring().subspan(32, 6), inMessage));
  CHECK(std::ranges::count(trainer.ring(), 7.f) == std::ssize(trainer.ring()) - 6 - 4);
  const auto status = server.status();
  CHECK(status["tables"][0]["pushed_rows"] == 1);
  CHECK(status["ring_bytes"] == kRingBytes);
}

TEST_CASE("Tables: what a trainer writes to its ring while a push is under way is at most a wrong gradient") {
  const LocalServer server(config(GENERATE(as<std::string>(), "hogwild", "locked", "sync")));
  auto io = kj::setupAsyncIo();
  RowTrainer trainer(io, server);
  trainer.openRing();
  std::atomic<bool> ending = false;
  std::thread scribbler([&, ring = trainer.ring()] {
    auto* const words = reinterpret_cast<volatile uint32_t*>(ring.data());
    for (uint32_t i = 0; !ending; i++) words[i % ring.size()] = i % 3 == 0 ? 0x7fc00000 : i * 2654435761u;
  });
  for (uint64_t step = 1; step <= 30; step++) {
    Rows rows{.step = step, .total = 500, .runs = {{0, 500}}, .ids = std::vector<uint64_t>(500, kLow)};
    const Status pushed = trainer.pushShared(rows);
    if (!pushed.ok()) CHECK(pushed.error().code == ErrorCode::nonFinite);
    static_cast<void>(trainer.pushNothing(step, 1));
    PSD_REQUIRE_OK(trainer.pullShared(rows));
  }
  ending = true;
  scribbler.join();
  CHECK(server.status()["tables"][0]["rows"] <= 1);
}

TEST_CASE("Tables: a slice says what its sisters say, and one that comes again is not applied again") {
  const LocalServer server(config(GENERATE(as<std::string>(), "hogwild", "locked")));
  auto io = kj::setupAsyncIo();
  RowTrainer trainer(io, server);
  const Rows first{.total = 2}, second{.first = 1, .total = 2};
  PSD_REQUIRE_OK(trainer.push(first));
  Rows other = second;
  other.total = 3;
  checkRefused(trainer.push(other), ErrorCode::badSlice, "the part has 3 in total; an earlier slice says 2");
  PSD_REQUIRE_OK(trainer.push(first));
  PSD_REQUIRE_OK(trainer.push(second));  // the same row: its second step
  PSD_REQUIRE_OK(trainer.pushNothing(1, 1));
  for (int i = 0; i < 2; i++) {
    PSD_REQUIRE_OK(trainer.push(second));
    PSD_REQUIRE_OK(trainer.pushNothing(1, 1));
  }
  CHECK(trainer.pull({}).value() == std::vector<float>(4, -2.f));
  const auto status = server.status();
  CHECK(status["row_shards"][0]["version"] == 1);
  CHECK(status["row_shards"][1]["version"] == 1);
  CHECK(status["tables"][0]["pushed_rows"] == 2);
}

TEST_CASE(
    "Tables: what policies and optimizers are not for tables is refused, in a line that names the group") {
  const auto refusal = [](const nlohmann::ordered_json& keys) {
    nlohmann::ordered_json document = nlohmann::ordered_json::parse(
        R"({"model": {"tensors": [{"name": "w", "shape": [3]}], "tables": [{"name": "item", "dim": 2}]}})");
    document.update(keys);
    const auto read = readDaemonConfig(document);
    return read.ok() ? std::string() : read.message();
  };
  const auto has = [&](const char* keys, const char* what) {
    INFO(refusal(nlohmann::ordered_json::parse(keys)));
    CHECK(refusal(nlohmann::ordered_json::parse(keys)).find(what) != std::string::npos);
  };
  has(R"({"policy": {"type": "easgd"}, "optimizer": {"type": "sgd"}})",
      "policy: policy easgd is not for embedding tables");
  has(R"({"groups": [{"match": "item", "policy": {"type": "sync", "aggregator": {"type": "median"}}}]})",
      "groups[0].policy: table 'item' cannot be combined with it: aggregator median");
  has(R"({"policy": {"type": "locked", "delay_compensation": {"lambda": 0.1}}})",
      "policy: table 'item' cannot be combined with it");
  has(R"({"optimizer": {"type": "rowwise_adagrad"}})",
      "optimizer: rowwise_adagrad is for embedding tables alone, and 'w'");
  has(R"({"tables": [{"match": "user"}]})", "tables[0].match: user matches no table");
  CHECK(refusal(nlohmann::ordered_json::parse(
            R"({"groups": [{"match": "item", "optimizer": {"type": "rowwise_adagrad"}}]})")) == "");
}

}  // namespace
}  // namespace psd::tables_protocol_test
