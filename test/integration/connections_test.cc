// A trainer with several connections: its pushes count once each and are applied as a whole, and the daemon
// gives further connections only to the trainer itself.

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include <kj/async-io.h>

#include "common/types/model_layout.h"
#include "test/fault/fault_proxy.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::connections_test {
namespace {

using testing::LocalServer;
using testing::RawPeer;
using testing::RawTrainer;
using Json = nlohmann::ordered_json;

constexpr uint32_t kShards = 5, kConnections = 3;
constexpr uint64_t kDayMs = 86'400'000;

Json configOf(const std::string& policy, uint32_t threads, uint32_t shards = kShards) {
  return {{"policy", {{"type", policy}}},
          {"shards", shards},
          {"threads", threads},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"lease_ms", kDayMs}, {"grace_ms", kDayMs}}}};
}

ModelSpec counters() { return {"counters", {{"w", DType::f32, {30'000}}}}; }

size_t elements() { return ModelLayout(counters()).totalElements(); }

ClientOptions optionsFor(const std::string& address) {
  ClientOptions options;
  options.servers = {address};
  options.connections = kConnections;
  options.chunkBytes = 4096;
  return options;
}

std::unique_ptr<Client> joined(const ClientOptions& options, uint32_t rank, uint32_t worldSize) {
  static const std::vector<float> zeros(elements());
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const auto info =
      (*client)->join({Rank{rank}, worldSize}, counters(), [&] { return std::span<const float>(zeros); });
  PSD_REQUIRE_OK(info);
  REQUIRE(info->connections == options.connections);
  return std::move(*client);
}

std::unique_ptr<Client> joined(const LocalServer& server, uint32_t rank, uint32_t worldSize,
                               const std::string& codec = "") {
  ClientOptions options = optionsFor(server.address());
  options.codec = codec;
  return joined(options, rank, worldSize);
}

std::vector<float> pulled(Client& client) {
  std::vector<float> values(elements());
  PSD_REQUIRE_OK(client.pull(values).wait());
  return values;
}

bool all(const std::vector<float>& values, uint64_t count) {
  return std::all_of(values.begin(), values.end(),
                     [&](float value) { return value == static_cast<float>(count); });
}

/// Pushes −1 for every element; some pushes are sent before others are answered.
void pushMany(Client& client, uint64_t pushes, uint32_t inflight, const std::vector<float>& gradient) {
  std::vector<Pending<PushInfo>> open;
  for (uint64_t step = 1; step <= pushes; step++) {
    // The basis that a trainer under sync would report.
    const std::vector<Version> basis(kShards, Version{step - 1});
    open.push_back(client.push(Step{step}, gradient, 1, basis));
    if (open.size() < inflight) continue;
    // The newest first: it cannot be sent before the others.
    for (; !open.empty(); open.pop_back()) PSD_REQUIRE_OK(open.back().wait());
  }
  for (; !open.empty(); open.pop_back()) PSD_REQUIRE_OK(open.back().wait());
}

TEST_CASE("Connections: every push is applied once to every shard, whatever loops its slices come over") {
  constexpr uint64_t kPushes = 20;
  const std::vector<float> gradient(elements(), -1.f);
  for (const std::string policy : {"hogwild", "locked", "sync"}) {
    for (const uint32_t threads : {1u, 3u}) {
      for (const uint32_t inflight : {1u, 4u}) {
        INFO(policy << ", " << threads << " loops, " << inflight << " in flight");
        const LocalServer server(configOf(policy, threads));
        auto client = joined(server, 0, 1);
        pushMany(*client, kPushes, inflight, gradient);
        CHECK(all(pulled(*client), kPushes));
        const Json status = server.status();
        CHECK(status["counters"]["updates"] == kPushes * kShards);
        CHECK(status["counters"]["repeated_slices"] == 0);
        CHECK(status["counters"]["refused_slices"] == 0);
        for (const Json& shard : status["shards"]) CHECK(shard["version"] == kPushes);
        CHECK(status["trainers"][0]["connections"] == kConnections);
        CHECK(status["gauges"]["connections_open"] == kConnections + 1);  // plus that of status()
        PSD_REQUIRE_OK(client->leave());
      }
    }
  }
}

TEST_CASE("Connections: trainers with several each lose nothing under locked") {
  constexpr uint64_t kPushes = 30;
  constexpr uint32_t kTrainers = 2;
  const LocalServer server(configOf("locked", 3));
  const std::vector<float> gradient(elements(), -1.f);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kTrainers; rank++) clients.push_back(joined(server, rank, kTrainers));
  std::vector<std::thread> threads;
  std::vector<Status> ends(kTrainers);
  for (uint32_t rank = 0; rank < kTrainers; rank++) {
    threads.emplace_back([&, rank] {
      for (uint64_t step = 1; step <= kPushes && ends[rank].ok(); step++) {
        ends[rank] = clients[rank]->push(Step{step}, gradient, 1, {}).wait().status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
  CHECK(all(pulled(*clients[0]), kPushes * kTrainers));
}

TEST_CASE("Connections: parts of a gradient in any order, and a push that is given up") {
  const LocalServer server(configOf("locked", 2));
  auto client = joined(server, 0, 1);
  const std::vector<float> gradient(elements(), -1.f);
  const size_t half = elements() / 2;
  {
    auto dropped = client->beginPush(Step{1}, gradient, 1, {});
    dropped->ready(0, half);
  }
  auto first = client->beginPush(Step{2}, gradient, 1, {});
  auto second = client->beginPush(Step{3}, gradient, 1, {});
  second->ready(0, elements());
  first->ready(half, elements() - half);
  first->ready(0, half);
  auto firstAnswer = first->finish(), secondAnswer = second->finish();
  PSD_REQUIRE_OK(secondAnswer.wait());
  CHECK(firstAnswer.done());
  PSD_REQUIRE_OK(firstAnswer.wait());
  const auto info = client->push(Step{4}, gradient, 1, {}).wait();
  PSD_REQUIRE_OK(info);
  CHECK(info->bytes == elements() * sizeof(float));
  const std::vector<float> values = pulled(*client);
  // Complete shards of the first push are in the model; which ones depends on the connections' timing.
  CHECK(values.back() == 3.f);
  for (const float value : values) CHECK((value == 3.f || value == 4.f));
}

TEST_CASE("Connections: one of them is cut in the middle of a push, which is in the model once") {
  const std::vector<float> gradient(elements(), -1.f);
  const std::string policy = GENERATE("hogwild", "locked");
  const size_t cut = GENERATE(0, 1);
  INFO(policy << ", connection " << cut << " is cut");
  const LocalServer server(configOf(policy, 2));
  testing::FaultProxy proxy(server.address());
  ClientOptions options = optionsFor(proxy.address());
  options.connections = 2;
  options.retryTimeout = std::chrono::minutes(1);
  auto client = joined(options, 0, 1);
  {
    auto push = client->beginPush(Step{1}, gradient, 1, {});
    // Shards 0, 2 and 4 use one connection, 1 and 3 the other: a part of each has arrived.
    const size_t shard = elements() / kShards;
    for (size_t i = 0; i < kShards; i++) push->ready(i * shard, shard / 2);
    server.statusWhen([](const Json& status) { return status["counters"]["push_slices"] >= 6; });
    proxy.cut(cut);
    for (size_t i = 0; i < kShards; i++) push->ready(i * shard + shard / 2, shard - shard / 2);
    PSD_REQUIRE_OK(push->finish().wait());
  }
  CHECK(all(pulled(*client), 1));
  PSD_REQUIRE_OK(client->push(Step{2}, gradient, 1, {}).wait());
  CHECK(all(pulled(*client), 2));
  const Json status = server.status();
  CHECK(status["trainers_lost"] == 0);
  CHECK(status["counters"]["trainers_returned"] == 1);
  CHECK(status["counters"]["refused_slices"] == 0);
  CHECK(status["counters"]["updates"] == 2 * kShards);
  for (const Json& each : status["shards"]) CHECK(each["version"] == 2);
}

TEST_CASE("Connections: a trainer that is stopped waits for no push behind one whose answer was lost") {
  Json config = configOf("sync", 2);
  config["policy"]["start_trainers"] = 2;  // so that a push is not answered
  const LocalServer server(config);
  testing::FaultProxy proxy(server.address());
  ClientOptions options = optionsFor(proxy.address());
  options.connections = 2;
  options.retryTimeout = std::chrono::minutes(1);
  const std::vector<float> gradient(elements(), -1.f);
  auto client = joined(options, 0, 2);
  auto first = client->push(Step{1}, gradient, 1, {});
  auto second = client->push(Step{2}, gradient, 1, {});  // sent when the first is answered
  server.statusWhen([](const Json& status) { return status["trainers"][0]["waits_for"] == "push"; });
  for (const size_t connection : {0, 1}) proxy.cut(connection);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!first.done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  REQUIRE(first.done());
  client->interrupt();
  for (auto* push : {&second, &first}) {
    const auto answer = push->wait();
    REQUIRE_FALSE(answer.ok());
    CHECK(answer.error().code == ErrorCode::interrupted);
  }
}

TEST_CASE("Connections: through a codec nothing of a dropped gradient is lost") {
  // For synchronous trainers one gradient is late, in all of its shards, though only one connection receives
  // that outcome.
  Json config = configOf("sync", 2);
  config["policy"]["backup_trainers"] = 1;
  const LocalServer server(config);
  auto quick = joined(server, 0, 2), slow = joined(server, 1, 2, "int8");
  const std::vector<float> gradient(elements(), -1.f);
  PSD_REQUIRE_OK(quick->push(Step{1}, gradient, 1, {}).wait());
  const auto late = slow->push(Step{1}, gradient, 1, {}).wait();
  PSD_REQUIRE_OK(late);
  REQUIRE(late->outcome == PushOutcome::late);
  std::vector<float> values(elements());
  const auto pull = slow->pull(values).wait();
  PSD_REQUIRE_OK(pull);
  const auto next = slow->push(Step{2}, gradient, 1, pull->versions).wait();
  PSD_REQUIRE_OK(next);
  REQUIRE(next->outcome == PushOutcome::applied);
  for (const float value : pulled(*slow)) CHECK(std::abs(value - 3.f) < 0.03f);
}

capnp::Response<schema::AttachResult> attach(RawPeer& peer, uint32_t rank, uint64_t incarnation,
                                             uint32_t attachment) {
  auto request = peer.training().attachRequest();
  request.setRank(rank);
  request.setIncarnation(incarnation);
  request.setAttachment(attachment);
  return peer.wait(request.send().dropPipeline());
}

Status pushOver(RawPeer& peer, const RawTrainer& trainer, schema::Trainer::Client session, uint64_t step,
                uint64_t offset, uint64_t count) {
  const std::vector<float> gradient(count, 1.f);
  auto request = session.pushRequest();
  trainer.fill(request.initHead(), {.step = step, .shard = 1, .offset = offset});
  request.setGradient(testing::dataOf(gradient));
  auto answer = peer.wait(request.send().dropPipeline());
  return answer.isError() ? testing::statusFrom(answer.getError()) : Status();
}

TEST_CASE("Connections: only a trainer that is in gets another one") {
  const LocalServer server(configOf("locked", 2, 2));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 2, {.incarnation = 7}), nameless(io, server, 1, 2);
  const auto refusal = [&](uint32_t rank, uint64_t incarnation, uint32_t attachment) {
    RawPeer peer(io, server.address());
    auto answer = attach(peer, rank, incarnation, attachment);
    REQUIRE(answer.isError());
    return testing::statusFrom(answer.getError()).error().code;
  };
  CHECK(refusal(0, 8, 1) == ErrorCode::sessionEnded);        // another incarnation
  CHECK(refusal(1, 0, 1) == ErrorCode::sessionEnded);        // no incarnation given
  CHECK(refusal(2, 7, 1) == ErrorCode::sessionEnded);        // not joined
  CHECK(refusal(1 << 30, 7, 1) == ErrorCode::sessionEnded);  // not a rank
  CHECK(refusal(0, 7, 0) == ErrorCode::sessionEnded);
  CHECK(refusal(0, 7, 2) == ErrorCode::sessionEnded);  // has not joined that often
}

TEST_CASE("Connections: a further one is of the same session, and ends with it") {
  const LocalServer server(configOf("locked", 2, 2));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1, {.incarnation = 7});
  {
    RawPeer early(io, server.address());
    auto answer = attach(early, 0, 7, 1);
    REQUIRE(answer.isSession());
    const Status status = pushOver(early, trainer, answer.getSession(), 1, 0, 16);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::notReady);  // the model is not initialized
  }
  trainer.initializeZeros();
  RawPeer further(io, server.address());
  auto answer = attach(further, 0, 7, 1);
  REQUIRE(answer.isSession());
  PSD_REQUIRE_OK(trainer.push({1, 0, 0}, std::vector<float>(1008, 1.f)));
  PSD_REQUIRE_OK(pushOver(further, trainer, answer.getSession(), 1, 0, 1008));
  PSD_REQUIRE_OK(pushOver(further, trainer, answer.getSession(), 1, 1008, 992));
  PSD_REQUIRE_OK(trainer.push({1, 0, 1008}, std::vector<float>(992, 1.f)));
  server.statusWhen([](const Json& status) { return status["trainers"][0]["connections"] == 2; });
  const Json status = server.status();
  CHECK(status["shards"][0]["version"] == 1);
  CHECK(status["shards"][1]["version"] == 1);
  CHECK(status["trainers"].size() == 1);

  RawTrainer again(io, server, 0, 1, {.incarnation = 7, .daemon = trainer.daemon()});
  CHECK(again.resumed());
  const Status late = pushOver(further, trainer, answer.getSession(), 2, 0, 16);
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::sessionEnded);
}

TEST_CASE("Connections: without a further one the trainer stays in, and without the first it does not") {
  Json config = configOf("locked", 2, 2);
  const LocalServer server(config);
  auto io = kj::setupAsyncIo();
  auto trainer = std::make_unique<RawTrainer>(io, server, 0, 1, testing::RawLife{.incarnation = 7});
  auto further = std::make_unique<RawPeer>(io, server.address());
  {
    auto answer = attach(*further, 0, 7, 1);
    REQUIRE(answer.isSession());
  }
  further = nullptr;
  server.statusWhen([](const Json& status) { return status["trainers"][0]["connections"] == 1; });
  CHECK(server.status()["trainers"][0]["connected"] == true);
  further = std::make_unique<RawPeer>(io, server.address());
  auto answer = attach(*further, 0, 7, 1);
  REQUIRE(answer.isSession());
  trainer = nullptr;
  server.statusWhen([](const Json& status) { return status["trainers"][0]["connected"] == false; });
  CHECK(server.status()["trainers"][0]["connections"] == 1);
}

}  // namespace
}  // namespace psd::connections_test
