// Sessions over time: leases, closed connections, ranks that change hands.

#include <atomic>
#include <future>

#include <kj/async-io.h>

#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/forwarding_backend.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::sessions_test {
namespace {

using testing::LocalServer;
using testing::RawTrainer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLeaseMs = 1500;
constexpr uint64_t kDayMs = 86'400'000;

Json configOf(uint64_t leaseMs, uint64_t graceMs) {
  return {{"shards", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"lease_ms", leaseMs}, {"grace_ms", graceMs}}}};
}

bool oneLost(const Json& status) { return status["trainers_lost"] == 1 && status["trainers"].empty(); }

std::unique_ptr<Client> joined(const LocalServer& server, const std::vector<float>& initial) {
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK(
      (*client)->join({Rank{0}, 1}, testing::model(), [&] { return std::span<const float>(initial); }));
  return std::move(*client);
}

TEST_CASE("Sessions: a silent trainer is gone after its lease, and all its calls say so") {
  LocalServer server(configOf(kLeaseMs, kDayMs));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  server.statusWhen(oneLost);
  for (const Status& status :
       {trainer.push({}, std::vector<float>(16)), trainer.pull(0, 0, 16), trainer.initialized(),
        trainer.initialize(0, 0, std::vector<float>(16)), trainer.keepAlive(), trainer.leave()}) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::sessionEnded);
    CHECK(status.message().find("lease_ms (1500)") != std::string::npos);
  }
  CHECK(server.status()["shards"][0]["version"] == 0);
  // The rank is free, and the model still exists.
  RawTrainer next(io, server, 0, 1);
  CHECK_FALSE(next.mustInitialize());
}

TEST_CASE("Sessions: a trainer that computes for longer than its lease stays in") {
  LocalServer server(configOf(kLeaseMs, kDayMs));
  const std::vector<float> ones(ModelLayout(testing::model()).totalElements(), 1.0f);
  auto client = joined(server, ones);
  const double before = server.status()["uptime_seconds"].get<double>();
  const Json status = server.statusWhen(
      [&](const Json& now) { return now["uptime_seconds"].get<double>() > before + 2 * kLeaseMs / 1000.0; });
  REQUIRE(status["trainers"].size() == 1);
  CHECK(status["trainers"][0]["connected"] == true);
  CHECK(status["trainers"][0]["waits_for"] == "");
  PSD_REQUIRE_OK(client->push(Step{1}, ones, 1, {}).wait());
  PSD_REQUIRE_OK(client->leave());
  CHECK(server.status()["trainers_lost"] == 0);
}

TEST_CASE("Sessions: a trainer whose connection closed is gone after the grace") {
  LocalServer server(configOf(kDayMs, 200));
  auto io = kj::setupAsyncIo();
  { RawTrainer trainer(io, server, 0, 1); }
  server.statusWhen(oneLost);
}

TEST_CASE("Sessions: a trainer whose connection closed is in until then") {
  LocalServer server(configOf(kDayMs, kDayMs));
  auto io = kj::setupAsyncIo();
  { RawTrainer trainer(io, server, 0, 1); }
  const Json status =
      server.statusWhen([](const Json& now) { return now["trainers"][0]["connected"] == false; });
  CHECK(status["trainers_lost"] == 0);
  CHECK(status["trainers"][0]["lease_left_seconds"].get<double>() > kDayMs / 2000.0);
}

TEST_CASE("Sessions: a new trainer takes the rank of one that is no longer connected") {
  LocalServer server(configOf(kDayMs, kDayMs));
  auto io = kj::setupAsyncIo();
  { RawTrainer trainer(io, server, 0, 1); }
  server.statusWhen([](const Json& now) { return now["trainers"][0]["connected"] == false; });
  RawTrainer next(io, server, 0, 1);
  CHECK(next.mustInitialize());
  const Json status = server.status();
  CHECK(status["trainers"].size() == 1);
  CHECK(status["trainers_lost"] == 1);
}

TEST_CASE("Sessions: a trainer that dies while its push waits for others is gone at once") {
  Json config = configOf(kDayMs, kDayMs);
  config["policy"] = {{"type", "sync"}};
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  RawTrainer other(io, server, 0, 2);
  other.initializeZeros();
  {
    RawTrainer trainer(io, server, 1, 2, {.incarnation = 7});
    CHECK(trainer.pushShard(0, 1).outcome == schema::PushOutcome::RECEIVED);
    PSD_REQUIRE_OK(trainer.push({.shard = 1}, std::vector<float>(1008, 1.f)));
    const std::vector<float> rest(992, 1.f);
    auto waiting = trainer.startPush({.shard = 1, .offset = 1008}, testing::dataOf(rest));
    trainer.peer().wait(trainer.peer().reading().pingRequest().send().ignoreResult());
    server.statusWhen([](const Json& now) { return now["waiting"].size() == 1; });
  }
  server.statusWhen([](const Json& now) { return now["trainers"][1]["connected"] == false; });
  const RawTrainer next(io, server, 1, 2, {.incarnation = 8});  // takes the rank
  CHECK(server.status()["trainers_lost"] == 1);
}

TEST_CASE("Sessions: a push that waits for others keeps no share of limits.in_flight_bytes") {
  constexpr uint64_t kMany = 40'000;  // a message that counts
  Json config = configOf(kDayMs, kDayMs);
  config["shards"] = 1;
  config["policy"] = {{"type", "sync"}};
  config["limits"] = {{"slice_bytes", kMany * sizeof(float)}};
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  const testing::RawLife life{.model = {"test", {{"w", DType::f32, {kMany}}}}};
  RawTrainer first(io, server, 0, 2, life), second(io, server, 1, 2, life);
  const std::vector<float> values(kMany, 1.f);
  PSD_REQUIRE_OK(first.initialize(0, 0, values));
  PSD_REQUIRE_OK(first.initialized());
  PSD_REQUIRE_OK(second.awaitModel());
  auto waiting = first.startPush({}, testing::dataOf(values));
  first.peer().wait(first.peer().reading().pingRequest().send().ignoreResult());
  server.statusWhen(
      [](const Json& now) { return now["waiting"].size() == 1 && now["in_flight_bytes"] == 0; });
  // A repeated push waits for the same round.
  auto again = first.startPush({}, testing::dataOf(values));
  first.peer().wait(first.peer().reading().pingRequest().send().ignoreResult());
  server.statusWhen([](const Json& now) { return now["in_flight_bytes"] == 0; });
  CHECK_FALSE(again.poll(io.waitScope));
  PSD_REQUIRE_OK(second.push({}, values));
  for (auto* answer : {&waiting, &again}) {
    CHECK(first.peer().wait(answer->dropPipeline()).getAccepted().getOutcome() ==
          schema::PushOutcome::APPLIED);
  }
}

TEST_CASE("Sessions: a trainer that is rejected, or leaves before it joined, binds no other to its model") {
  struct Gated : testing::WrappingBackend {
    using Backend::allocate;
    Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
        std::span<const ShardRequest> shards) override {
      began++;
      began.notify_all();
      gate.wait();
      return WrappingBackend::allocate(shards);
    }
    std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override { return storage; }
    std::atomic<int> began{0};
    std::promise<void> opened;
    std::shared_future<void> gate = opened.get_future().share();
  };
  Json config = configOf(kDayMs, 0);
  config["world_size"] = 1;
  const ModelSpec foreign{"foreign", {{"x", DType::f32, {16}}}};
  SECTION("refused") {
    LocalServer server(config);
    auto io = kj::setupAsyncIo();
    const Status refused = testing::tryToJoin(io, server, 0, 2, {.model = foreign});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::worldSizeMismatch);
    CHECK(server.status()["model"].is_null());
    CHECK(RawTrainer(io, server, 0, 1).mustInitialize());
  }
  SECTION("gone while its model is being made") {
    const auto device = std::make_shared<Gated>();
    LocalServer server(config, device);
    auto io = kj::setupAsyncIo();
    {
      testing::RawPeer peer(io, server.address());
      auto joining = testing::startJoin(peer, 0, 1, {.model = foreign});
      peer.wait(peer.reading().pingRequest().send().ignoreResult());
      device->began.wait(0);
    }
    server.statusWhen([](const Json& now) { return now["gauges"]["connections_open"] == 1; });  // status()
    device->opened.set_value();
    CHECK(RawTrainer(io, server, 0, 1).mustInitialize());
  }
}

TEST_CASE("Sessions: one that joins while the last other one leaves is in, though that one's model went") {
  LocalServer server(configOf(kDayMs, 0));
  auto io = kj::setupAsyncIo();
  testing::RawPeer first(io, server.address()), second(io, server.address());
  for (int round = 0; round < 200; round++) {
    auto in = first.wait(testing::startJoin(first, 0, 2, {}));
    REQUIRE(in.isJoined());
    // Either order is possible.
    auto leaving = in.getJoined().getSession().leaveRequest().send().dropPipeline();
    auto joining = testing::startJoin(second, 1, 2, {});
    first.wait(kj::mv(leaving));
    auto joined = second.wait(kj::mv(joining));
    REQUIRE(joined.isJoined());
    second.wait(joined.getJoined().getSession().leaveRequest().send().dropPipeline());
  }
  CHECK(server.status()["trainers"].empty());
}

TEST_CASE("Sessions: a world larger than the connections that may be is refused") {
  Json config = configOf(kDayMs, 0);
  config["limits"]["connections"] = 8;
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  const Status refused = testing::tryToJoin(io, server, 0, 9, {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message() == "a world size of 9: limits.connections allows 8");
  PSD_REQUIRE_OK(testing::tryToJoin(io, server, 7, 8, {}));
}

/// A device that compares at most three gradients with one another.
struct DeviceForThree final : testing::WrappingBackend {
  uint32_t comparedGradientsMax() const override { return 3; }
  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override { return storage; }
};

TEST_CASE("Sessions: more trainers than their aggregator's device takes are refused, not their rounds") {
  Json config = configOf(kDayMs, 0);
  config["policy"] = {{"type", "sync"}, {"aggregator", {{"type", "median"}}}, {"backup_trainers", 1}};
  LocalServer server(config, std::make_shared<DeviceForThree>());
  auto io = kj::setupAsyncIo();
  const Status refused = testing::tryToJoin(io, server, 0, 5, {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message() ==
        "with a world size of 5 the aggregator of policy 'sync' sets 4 gradients of a round against one "
        "another, "
        "and cpu takes 3; use device cpu, aggregator mean or more backup_trainers");
  RawTrainer trainer(io, server, 0, 4);
  trainer.initializeZeros();
  // A reload has an event loop of its own.
  const auto reload = [&] {
    return std::async(std::launch::async, [&] { return server.reload(config); }).get();
  };
  config["policy"].erase("backup_trainers");
  const auto reloaded = reload();
  REQUIRE_FALSE(reloaded.ok());
  CHECK(reloaded.error().code == ErrorCode::invalidArgument);
  config["policy"]["aggregator"] = {{"type", "mean"}};
  PSD_REQUIRE_OK(reload());
}

TEST_CASE("Sessions: the status tells what a trainer waits for") {
  LocalServer server(configOf(kDayMs, kDayMs));
  auto io = kj::setupAsyncIo();
  RawTrainer initializer(io, server, 0, 2), waiting(io, server, 1, 2);
  auto parked = waiting.session().awaitModelRequest().send();
  waiting.peer().wait(waiting.peer().reading().pingRequest().send().ignoreResult());
  CHECK(server.status()["trainers"][1]["waits_for"] == "model");
  initializer.initializeZeros();
  CHECK(waiting.peer().wait(parked.dropPipeline()).isReady());
  CHECK(server.status()["trainers"][1]["waits_for"] == "");
}

}  // namespace
}  // namespace psd::sessions_test
