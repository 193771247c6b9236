// A daemon whose device is asynchronous and works on another thread: events in the meantime.

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <kj/common.h>

#include "common/os/socket.h"
#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/async_backend.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::async_device_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::AsyncBackend;
using testing::LocalServer;

const ModelSpec kModel{"net", {{"fc.weight", DType::f32, {40, 50}}, {"fc.bias", DType::f32, {50}}}};
constexpr uint32_t kShards = 3;

Json configOf(const Json& policy) {
  return {{"policy", policy},
          {"shards", kShards},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"grace_ms", 0}}}};
}

const std::vector<Json> kPolicies = {{{"type", "hogwild"}},
                                     {{"type", "locked"}},
                                     {{"type", "locked"}, {"clip", {{"norm", 1e6}}}},
                                     {{"type", "bounded_staleness"}, {"bound", 1}},
                                     {{"type", "sync"}}};

/// Gradients such that, with a learning rate of 1, the model counts the pushes that are in it.
std::vector<float> minusOnes() {
  const ModelLayout layout(kModel);
  std::vector<float> values(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    std::fill_n(values.begin() + static_cast<ptrdiff_t>(place.begin), place.count, -1.f);
  }
  return values;
}

std::unique_ptr<Client> joined(const LocalServer& server, uint32_t rank, uint32_t worldSize) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 4 << 10;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const std::vector<float> zeros(minusOnes().size());
  PSD_REQUIRE_OK(
      (*client)->join({Rank{rank}, worldSize}, kModel, [&] { return std::span<const float>(zeros); }));
  return std::move(*client);
}

/// Whether each shard, without its padding, holds as many updates as its version says, which is at most
/// `most`.
bool countsVersions(Client& client, uint64_t most) {
  std::vector<float> values(minusOnes().size());
  const auto pulled = client.pull(values).wait();
  PSD_REQUIRE_OK(pulled);
  const std::vector<float> counted = minusOnes();
  const auto plan = ShardPlan::make(ModelLayout(kModel).totalElements(), kShards);
  for (size_t s = 0; s < kShards; s++) {
    if (pulled->versions[s].value > most) return false;
    const ShardRange& range = plan.shards[s];
    for (uint64_t i = range.begin; i < range.begin + range.count; i++) {
      if (counted[i] != 0 && values[i] != static_cast<float>(pulled->versions[s].value)) return false;
    }
  }
  return true;
}

/// Pulls and pushes; each may be the trainer's first call.
Status train(Client& client, uint64_t steps) {
  const auto gradient = minusOnes();
  std::vector<float> values(gradient.size());
  for (uint64_t step = 1; step <= steps; step++) {
    auto pulled = client.pull(values).wait();
    PSD_RETURN_IF_ERROR(pulled.status());
    PSD_RETURN_IF_ERROR(client.push(Step{step}, gradient, 1, pulled->versions).wait().status());
  }
  return client.leave();
}

/// All at once, each on a thread of its own.
void trainAll(const LocalServer& server, uint32_t trainers, uint64_t steps) {
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < trainers; rank++) clients.push_back(joined(server, rank, trainers));
  std::vector<Status> ends(trainers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trainers; rank++) {
    threads.emplace_back([&, rank] { ends[rank] = train(*clients[rank], steps); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
}

std::unique_ptr<Client> observer(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->observe(kModel));
  return std::move(*client);
}

TEST_CASE("Asynchronous device: what trainers push is in the model, and checkpoints go beside it") {
  constexpr uint32_t kTrainers = 4;
  constexpr uint64_t kSteps = 150;
  for (const Json& policy : kPolicies) {
    INFO(policy.dump());
    const bool hogwild = policy["type"] == "hogwild", rounds = policy["type"] == "sync";
    const uint64_t updates = rounds ? kSteps : kTrainers * kSteps;
    testing::TempDir folder;
    Json config = configOf(policy);
    if (rounds) config["policy"]["start_trainers"] = kTrainers;
    config["durability"] = {{"type", policy.contains("clip") ? "checkpoint" : "log"},
                            {"path", folder.file("saved")},
                            {"every_seconds", 0},
                            {"every_updates", 3}};
    {
      LocalServer server(config, std::make_shared<AsyncBackend>());
      trainAll(server, kTrainers, kSteps);
      const Json status =
          server.statusWhen([](const Json& now) { return now["durability"]["checkpoints"] != 0; });
      CHECK(status["durability"]["error"] == "");
      CHECK(status["trainers_lost"] == 0);
      for (const Json& shard : status["shards"]) CHECK(shard["version"] == updates);
      if (!hogwild) CHECK(countsVersions(*observer(server), updates));
    }
    LocalServer after(config, std::make_shared<AsyncBackend>());
    if (!hogwild) CHECK(countsVersions(*observer(after), updates));
    if (config["durability"]["type"] != "log") continue;
    const Json restarted = after.status();
    for (const Json& shard : restarted["shards"]) CHECK(shard["version"] == updates);
  }
}

TEST_CASE("Asynchronous device: a trainer that vanishes while its push is applied delays no other") {
  for (const Json& policy : kPolicies) {
    INFO(policy.dump());
    const auto device = std::make_shared<AsyncBackend>();
    LocalServer server(configOf(policy), device);
    const auto gradient = minusOnes();
    auto lost = joined(server, 0, 2), other = joined(server, 1, 2);
    KJ_DEFER(device->gate().open());
    device->gate().close();
    {
      auto push = lost->push(Step{1}, gradient, 1, std::vector<Version>(kShards));
      REQUIRE(device->gate().waitForHeld(1));
    }
    lost = nullptr;
    std::vector<float> values(gradient.size());
    auto pulling = other->pull(values);
    device->gate().open();
    const auto pulled = pulling.wait();
    PSD_REQUIRE_OK(pulled);
    const auto pushed = other->push(Step{1}, gradient, 1, pulled->versions).wait();
    PSD_REQUIRE_OK(pushed);
    CHECK(pushed->outcome == PushOutcome::applied);
    server.statusWhen([](const Json& status) { return status["trainers_lost"] == 1; });
    CHECK(countsVersions(*other, 2));
    PSD_REQUIRE_OK(other->leave());
  }
}

TEST_CASE("Asynchronous device: the daemon ends while it is at work") {
  for (const Json& policy : kPolicies) {
    INFO(policy.dump());
    const auto device = std::make_shared<AsyncBackend>();
    Json config = configOf(policy);
    config["limits"] = {{"drain_ms", 1}};
    auto server = std::make_unique<LocalServer>(config, device);
    const auto gradient = minusOnes();
    auto first = joined(*server, 0, 2), second = joined(*server, 1, 2);
    std::vector<float> values(gradient.size());
    KJ_DEFER(device->gate().open());
    device->gate().close();
    auto push = first->push(Step{1}, gradient, 1, std::vector<Version>(kShards));
    auto pull = second->pull(values);
    REQUIRE(device->gate().waitForHeld(1));
    std::promise<void> quiet;
    server->setWhenQuiet([&] { quiet.set_value(); });
    std::thread stops([&] { server = nullptr; });
    CHECK(quiet.get_future().wait_for(std::chrono::minutes(1)) == std::future_status::ready);
    // Its event loops end now, or already wait for the device.
    for (int i = 0; i < 1000; i++) std::this_thread::yield();
    device->gate().open();
    stops.join();
    // The outcome of these pushes is undefined; but each must be answered.
    static_cast<void>(push.wait());
    static_cast<void>(pull.wait());
  }
}

TEST_CASE("Asynchronous device: the daemon's last work waits for a round that a departure closed") {
  const auto device = std::make_shared<AsyncBackend>();
  Json config = configOf({{"type", "sync"}});
  config["limits"] = {{"drain_ms", 1}};
  auto server = std::make_unique<LocalServer>(config, device);
  const auto gradient = minusOnes();
  auto first = joined(*server, 0, 2), second = joined(*server, 1, 2);
  auto push = first->push(Step{1}, gradient, 1, std::vector<Version>(kShards));
  server->statusWhen([](const Json& status) { return !status["waiting"].empty(); });
  KJ_DEFER(device->gate().open());
  device->gate().close();
  PSD_REQUIRE_OK(second->leave());
  REQUIRE(device->gate().waitForHeld(1));
  std::promise<size_t> quiet;
  server->setWhenQuiet([&] { quiet.set_value(device->gate().held()); });
  std::thread stops([&] { server = nullptr; });
  auto heldThen = quiet.get_future();
  heldThen.wait_for(std::chrono::milliseconds(200));  // no answer may arrive, so a short wait suffices
  device->gate().open();
  REQUIRE(heldThen.wait_for(std::chrono::minutes(1)) == std::future_status::ready);
  CHECK(heldThen.get() == 0);
  stops.join();
  static_cast<void>(push.wait());
}

TEST_CASE("Asynchronous device: a model has its values when they are written, not when they have come") {
  const auto device = std::make_shared<AsyncBackend>();
  const LocalServer server(configOf({{"type", "locked"}}), device);
  auto io = kj::setupAsyncIo();
  testing::RawTrainer trainer(io, server, 0, 1, {.model = kModel});
  REQUIRE(trainer.mustInitialize());
  KJ_DEFER(device->gate().open());
  device->gate().close();
  const std::vector<float> ones(minusOnes().size(), 1.f);
  std::vector<kj::Promise<Status>> written;
  for (const ShardRange& range : ShardPlan::make(ones.size(), kShards).shards) {
    auto request = trainer.session().initializeRequest();
    request.setShard(range.id.value);
    request.setValues(testing::dataOf(std::vector<float>(range.count, 1.f)));
    written.push_back(
        request.send().then([](auto&& answer) { return wire::readStatus(answer.getStatus()); }));
  }
  auto all = trainer.session().initializedRequest().send().then(
      [](auto&& answer) { return wire::readStatus(answer.getStatus()); });
  trainer.peer().wait(trainer.peer().reading().pingRequest().send().ignoreResult());  // all is received
  REQUIRE(device->gate().waitForHeld(1));
  CHECK(server.status()["model"]["ready"] == false);
  device->gate().open();
  for (auto& slice : written) PSD_REQUIRE_OK(trainer.peer().wait(kj::mv(slice)));
  PSD_REQUIRE_OK(trainer.peer().wait(kj::mv(all)));
  CHECK(server.status()["model"]["ready"] == true);
  std::vector<float> values(ones.size());
  PSD_REQUIRE_OK(observer(server)->pull(values).wait());
  CHECK(values == ones);
}

}  // namespace
}  // namespace psd::async_device_test
