// A daemon that is killed and started again, and trainers that reconnect to it with unanswered pushes.

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "common/types/model_layout.h"
#include "test/integration/daemon_process.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::restart_test {
namespace {

using testing::DaemonProcess;
using testing::RawTrainer;
using testing::TempDir;
using Json = nlohmann::ordered_json;

std::vector<std::string> settingsFor(const std::string& durability) {
  return {"policy.type=locked", "optimizer.type=sgd",      "optimizer.lr=1",          "shards=2",
          "threads=2",          "limits.slice_bytes=4096", "durability=" + durability};
}

std::string saving(const TempDir& folder, const std::string& type, const std::string& more = "") {
  return R"({"type": ")" + type + R"(", "path": ")" + folder.file("saved") + R"(")" + more + "}";
}

/// One of the two shards of a step, in its two slices.
void pushShard(RawTrainer& trainer, uint64_t step, uint32_t shard) {
  PSD_REQUIRE_OK(trainer.push({step, shard, 0}, std::vector<float>(1024, -1.0f)));
  PSD_REQUIRE_OK(trainer.push({step, shard, 1024}, std::vector<float>(976, -1.0f)));
}

TEST_CASE("a push that comes again after a restart is not applied again") {
  struct Life {
    const char* durability;
    int end;  // how the daemon ends: a checkpoint alone is exact only after an orderly end
  };
  for (const Life& life : {Life{"log", SIGKILL}, Life{"checkpoint", SIGTERM}}) {
    INFO(life.durability);
    TempDir folder;
    DaemonProcess daemon(folder);
    daemon.start(settingsFor(saving(folder, life.durability)));
    auto io = kj::setupAsyncIo();
    {
      RawTrainer before(io, daemon.address(), 0, 1, {.incarnation = 7});
      before.initializeZeros();
      for (uint64_t step : {1, 2, 4}) {  // step 3 was never made
        pushShard(before, step, 0);
        pushShard(before, step, 1);
      }
      pushShard(before, 5, 0);  // only one shard of step 5
    }
    daemon.kill(life.end);
    daemon.start(settingsFor(saving(folder, life.durability)));
    {
      RawTrainer after(io, daemon.address(), 0, 1, {.incarnation = 7, .daemon = 12345});
      CHECK_FALSE(after.resumed());
      CHECK_FALSE(after.mustInitialize());
      for (int i = 0; i < 2; i++) {
        for (uint64_t step : {2, 4, 5}) {
          pushShard(after, step, 0);
          pushShard(after, step, 1);
        }
      }
      Json status = daemon.status();
      for (int shard : {0, 1}) CHECK(status["shards"][shard]["version"] == 4);
      CHECK(status["counters"]["repeated_slices"] == 22);
      pushShard(after, 6, 0);
      pushShard(after, 6, 1);
    }
    // Another incarnation of the rank starts its step count from scratch.
    RawTrainer next(io, daemon.address(), 0, 1, {.incarnation = 8});
    pushShard(next, 1, 0);
    pushShard(next, 1, 1);
    const Json status = daemon.status();
    for (int shard : {0, 1}) CHECK(status["shards"][shard]["version"] == 6);
  }
}

TEST_CASE("a trainer whose rank another took over does not get it back from the next daemon") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const auto settings = settingsFor(saving(folder, "log", R"(, "every_updates": 2)"));
  daemon.start(settings);
  auto io = kj::setupAsyncIo();
  uint64_t first = 0;
  for (const uint64_t incarnation : {7, 8}) {
    daemon.statusWhen([](const Json& status) {  // otherwise the rank still belongs to the departed trainer
      return status["trainers"].empty() || status["trainers"][0]["connected"] == false;
    });
    RawTrainer trainer(io, daemon.address(), 0, 1, {.incarnation = incarnation});
    if (incarnation == 7) trainer.initializeZeros();
    first = trainer.daemon();
    for (uint64_t step = 1; step <= incarnation - 6; step++) {
      for (uint32_t shard : {0u, 1u}) pushShard(trainer, step, shard);
    }
  }
  for (int restarts = 0; restarts < 2; restarts++) {  // from the log, and from a checkpoint
    daemon.kill(restarts == 0 ? SIGKILL : SIGTERM);
    daemon.start(settings);
    testing::RawPeer late(io, daemon.address());
    auto answer = testing::join(late, 0, 1, {.incarnation = 7, .daemon = first});
    REQUIRE(answer.isError());
    CHECK(testing::statusFrom(answer.getError()).error().code == ErrorCode::rankTaken);
    RawTrainer back(io, daemon.address(), 0, 1, {.incarnation = 8, .daemon = first});
    for (uint32_t shard : {0u, 1u}) pushShard(back, 2, shard);
    for (int shard : {0, 1}) CHECK(daemon.status()["shards"][shard]["version"] == 3);
  }
}

TEST_CASE(
    "a trainer whose rank another takes over after a restart does not get it back when that one is done") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const auto settings = settingsFor(saving(folder, "log"));
  daemon.start(settings);
  auto io = kj::setupAsyncIo();
  uint64_t first = 0;
  {
    RawTrainer old(io, daemon.address(), 0, 1, {.incarnation = 7});
    old.initializeZeros();
    first = old.daemon();
    for (uint32_t shard : {0u, 1u}) pushShard(old, 1, shard);
  }
  daemon.kill(SIGKILL);
  daemon.start(settings);
  {
    RawTrainer successor(io, daemon.address(), 0, 1, {.incarnation = 8});
    for (uint32_t shard : {0u, 1u}) pushShard(successor, 1, shard);
    PSD_REQUIRE_OK(successor.leave());
  }
  testing::RawPeer late(io, daemon.address());
  auto answer = testing::join(late, 0, 1, {.incarnation = 7, .daemon = first});
  REQUIRE(answer.isError());
  CHECK(testing::statusFrom(answer.getError()).error().code == ErrorCode::rankTaken);
}

TEST_CASE("the first round after a restart waits for as many trainers as had a part in the newest one") {
  const bool tables = GENERATE(false, true);  // with a parameter group of their own
  INFO("tables " << tables);
  ModelSpec model = testing::model();
  if (tables) model.tables = {{"user", 3, {RowInitial::Kind::zero, 0, 1}}};
  const size_t elements = ModelLayout(model).totalElements();
  const std::vector<float> zeros(elements, 0.0f), ones(elements, -1.0f);
  constexpr uint32_t kTrainers = 3;
  TempDir folder;
  DaemonProcess daemon(folder);
  // A grace longer than any test.
  std::vector<std::string> settings = {"policy.type=sync", "optimizer.type=sgd", "optimizer.lr=1",
                                       "membership.grace_ms=3600000", "durability=" + saving(folder, "log")};
  if (tables) {
    settings.push_back(R"(groups=[{"match": "user", "optimizer": {"type": "sgd", "lr": 0.5}}])");
    settings.push_back("row_shards=2");
  }
  ClientOptions options;
  options.servers = {daemon.address()};
  std::vector<std::unique_ptr<Client>> clients;
  std::deque<RowBatch> batches;
  std::deque<Pending<PushInfo>> open;
  const auto joinAndPush = [&](uint32_t rank, uint64_t step) {
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    PSD_REQUIRE_OK((*client)->join({Rank{rank}, kTrainers}, model, [&] { return std::span(zeros); }));
    std::vector<float> values(elements);
    RowBatch* batch = nullptr;
    if (tables) {
      batch = &batches.emplace_back((*client)->makeRowBatch());
      const std::vector<uint64_t> ids = {rank, 7, 1000 + step};
      const RowBatch::Feature features[] = {{0, ids}};
      batch->make(features);
    }
    const auto pulled = (*client)->pull(values, batch).wait();
    PSD_REQUIRE_OK(pulled);
    open.push_back((*client)->push(Step{step}, ones, 1, pulled->versions, batch));
    clients.push_back(*std::move(client));
  };
  const auto roundIs = [&](uint64_t version) {
    for (; !open.empty(); open.pop_front()) {
      const auto pushed = open.front().wait();
      PSD_REQUIRE_OK(pushed);
      CHECK(pushed->outcome == PushOutcome::applied);
    }
    const Json status = daemon.status();
    for (const Json& shard : status["shards"]) CHECK(shard["version"] == version);
    for (const Json& shard : status["row_shards"]) CHECK(shard["version"] == version);
  };
  daemon.start([&] {
    auto first = settings;
    first.push_back("policy.start_trainers=" + std::to_string(kTrainers));
    return first;
  }());
  for (uint32_t rank = 0; rank < kTrainers; rank++) joinAndPush(rank, 1);
  roundIs(1);
  daemon.kill(SIGKILL);
  clients.clear();

  daemon.start(settings);
  for (uint32_t rank = 0; rank + 1 < kTrainers; rank++) joinAndPush(rank, 2);
  daemon.statusWhen([&](const Json& status) {
    const Json& waiting = status["waiting"];
    return waiting.size() == (tables ? 2 : 1) && std::ranges::all_of(waiting, [](const Json& group) {
             return group["ranks"].size() == kTrainers - 1 && group["joins"] == 1;
           });
  });
  joinAndPush(kTrainers - 1, 2);
  roundIs(2);
}

TEST_CASE("a client continues across many deaths of the daemon, and every push is in the model once") {
  const ModelSpec model = testing::model();
  const ModelLayout layout(model);
  TempDir folder;
  testing::Random random(20261122);
  DaemonProcess daemon(folder);
  const auto settings = settingsFor(saving(folder, "log", R"(, "every_updates": 40)"));
  daemon.start(settings);
  constexpr uint64_t kPushes = 400;
  constexpr size_t kInflight = 4;
  std::atomic<uint64_t> answered{0};
  auto pushing = std::async(std::launch::async, [&]() -> Status {
    ClientOptions options;
    options.servers = {daemon.address()};
    options.retryTimeout = std::chrono::minutes(2);
    const std::vector<float> zeros(layout.totalElements(), 0.0f), ones(layout.totalElements(), -1.0f);
    PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
    PSD_RETURN_IF_ERROR(client->join({Rank{0}, 1}, model, [&] { return std::span<const float>(zeros); }));
    std::deque<Pending<PushInfo>> open;
    for (uint64_t step = 1; step <= kPushes || !open.empty(); step++) {
      if (step <= kPushes) open.push_back(client->push(Step{step}, ones, 1, {}));
      if (step < kPushes && open.size() < kInflight) continue;
      PSD_RETURN_IF_ERROR(open.front().wait());
      open.pop_front();
      answered++;
    }
    return client->leave();
  });
  for (uint64_t deaths = 1; deaths <= 6; deaths++) {
    const uint64_t target = deaths * kPushes / 8 + random.below(20);
    while (answered < target) {
      REQUIRE(pushing.wait_for(std::chrono::milliseconds(random.below(5))) != std::future_status::ready);
    }
    daemon.kill(SIGKILL);
    daemon.start(settings);
  }
  REQUIRE(pushing.wait_for(std::chrono::minutes(5)) == std::future_status::ready);
  PSD_REQUIRE_OK(pushing.get());
  const Json status = daemon.status();
  for (int shard : {0, 1}) CHECK(status["shards"][shard]["version"] == kPushes);
  ClientOptions options;
  options.servers = {daemon.address()};
  auto reader = Client::connect(options);
  PSD_REQUIRE_OK(reader);
  PSD_REQUIRE_OK((*reader)->observe(model));
  std::vector<float> values(layout.totalElements());
  PSD_REQUIRE_OK((*reader)->pull(values).wait());
  CHECK(values == std::vector<float>(values.size(), static_cast<float>(kPushes)));
}

}  // namespace
}  // namespace psd::restart_test
