// A trainer that rejoins over another connection: what it resumes, and what of the old connection still
// counts.

#include <future>
#include <vector>

#include <kj/async-io.h>
#include <kj/common.h>

#include "test/integration/raw_trainer.h"
#include "test/support/async_backend.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"

namespace psd::rejoin_test {
namespace {

using testing::dataOf;
using testing::LocalServer;
using testing::RawTrainer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kDayMs = 86'400'000;

Json configOf(uint64_t graceMs) {
  return {{"shards", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"lease_ms", kDayMs}, {"grace_ms", graceMs}}}};  // raw peers send no heartbeats
}

/// Returns once everything that the trainer has sent so far has been read and handled.
void awaitAllRead(RawTrainer& trainer) {
  for (int i = 0; i < 2; i++) {
    trainer.peer().wait(trainer.peer().reading().pingRequest().send().ignoreResult());
  }
}

uint64_t takenSlices(const LocalServer& server, RawTrainer& trainer) {
  awaitAllRead(trainer);
  return server.status()["counters"]["push_slices"].get<uint64_t>();
}

const std::vector<float> kFirst(1024, 1.0f), kSecond(976, 1.0f);  // slices of a shard

/// The rest of a step whose first slice has arrived.
void pushRest(RawTrainer& trainer, uint64_t step) {
  PSD_REQUIRE_OK(trainer.push({step, 0, 1024}, kSecond));
  PSD_REQUIRE_OK(trainer.push({step, 1, 0}, kFirst));
  PSD_REQUIRE_OK(trainer.push({step, 1, 1024}, kSecond));
}

/// A reload that has closed the gate to gradients that have not started: a first slice waits there.
struct HeldReload {
  std::future<Result<std::string>> reload;
  uint64_t step;  ///< of that slice
  capnp::RemotePromise<schema::PushResult> waiting;
};

/// `probe` pushes until its gradients wait. Another trainer's gradient is incomplete; the reload waits for
/// the rest.
HeldReload closeGate(LocalServer& server, const Json& config, RawTrainer& probe) {
  auto reload = std::async(std::launch::async, [&server, config] { return server.reload(config); });
  for (uint64_t step = 1;; step++) {
    const uint64_t before = takenSlices(server, probe);
    auto waiting = probe.startPush({step}, dataOf(kFirst));
    if (takenSlices(server, probe) == before) return {std::move(reload), step, kj::mv(waiting)};
    pushRest(probe, step);
  }
}

TEST_CASE("Rejoin: a trainer that joins again resumes its session, and the old connection is detached") {
  LocalServer server(configOf(kDayMs));
  auto io = kj::setupAsyncIo();
  RawTrainer before(io, server, 0, 1, {.incarnation = 7});
  before.initializeZeros();
  PSD_REQUIRE_OK(before.push({1, 0, 0}, std::vector<float>(1024, 1.0f)));
  RawTrainer after(io, server, 0, 1, {.incarnation = 7, .daemon = before.daemon()});
  CHECK(after.resumed());
  CHECK(after.daemon() == before.daemon());
  CHECK_FALSE(after.mustInitialize());
  const Status late = before.push({1, 0, 1024}, std::vector<float>(976, 1.0f));
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::sessionEnded);
  CHECK(late.message().find("another connection") != std::string::npos);
  // What the old connection delivered of the push counts.
  PSD_REQUIRE_OK(after.push({1, 0, 1024}, std::vector<float>(976, 1.0f)));
  const Json status = server.status();
  CHECK(status["shards"][0]["version"] == 1);
  CHECK(status["trainers"].size() == 1);
  CHECK(status["trainers"][0]["process"].get<std::string>().size() == 8);
  CHECK(status["trainers_lost"] == 0);
  CHECK(status["counters"]["trainers_returned"] == 1);
}

TEST_CASE("Rejoin: a slice that comes again is answered, and not applied again") {
  for (const char* policy : {"hogwild", "locked"}) {
    Json config = configOf(kDayMs);
    config["policy"]["type"] = policy;
    config["threads"] = 2;  // the two connections are on different loops
    LocalServer server(config);
    auto io = kj::setupAsyncIo();
    RawTrainer before(io, server, 0, 1, {.incarnation = 7});
    before.initializeZeros();
    for (int i = 0; i < 2; i++) {
      PSD_REQUIRE_OK(before.push({1, 0, 0}, kFirst));
      PSD_REQUIRE_OK(before.push({1, 0, 1024}, kSecond));
      PSD_REQUIRE_OK(before.push({2, 0, 0}, kFirst));  // unfinished
    }
    RawTrainer after(io, server, 0, 1, {.incarnation = 7, .daemon = before.daemon()});
    for (int i = 0; i < 2; i++) {
      PSD_REQUIRE_OK(after.push({1, 0, 1024}, kSecond));
      PSD_REQUIRE_OK(after.push({2, 0, 0}, kFirst));
      PSD_REQUIRE_OK(after.push({2, 0, 1024}, kSecond));
      PSD_REQUIRE_OK(after.push({1, 0, 0}, kFirst));
    }
    const Json status = server.status();
    CHECK(status["shards"][0]["version"] == 2);
    CHECK(status["counters"]["repeated_slices"] == 10);
    CHECK(status["counters"]["refused_slices"] == 0);
  }
}

TEST_CASE("Rejoin: what comes again while the device is still at it is not overtaken by newer steps") {
  Json config = configOf(0);
  config["policy"]["type"] = "locked";
  const auto device = std::make_shared<testing::AsyncBackend>();
  LocalServer server(config, device);
  auto io = kj::setupAsyncIo();
  const std::vector<float> whole(2000, 1.0f);
  KJ_DEFER(device->gate().open());
  {
    RawTrainer lost(io, server, 0, 1, {.incarnation = 7});
    lost.initializeZeros();
    device->gate().close();
    const auto push = lost.startPush({1, 0, 0}, dataOf(whole));
    awaitAllRead(lost);
    REQUIRE(device->gate().waitForHeld(1));
  }
  server.statusWhen([](const Json& status) { return status["trainers_lost"] == 1; });
  RawTrainer back(io, server, 0, 1, {.incarnation = 7});
  std::vector<capnp::RemotePromise<schema::PushResult>> pushes;
  for (const uint64_t step : {1u, 2u}) {
    for (const uint32_t shard : {0u, 1u}) pushes.push_back(back.startPush({step, shard, 0}, dataOf(whole)));
  }
  awaitAllRead(back);
  device->gate().open();
  for (auto& push : pushes) CHECK(back.peer().wait(push.dropPipeline()).isAccepted());
  for (const auto& shard : server.status()["shards"]) CHECK(shard["version"] == 2);
}

TEST_CASE("Rejoin: what waited at a reload's gate goes with the connection that it came over") {
  Json config = configOf(kDayMs);
  config["policy"]["type"] = "locked";
  config["threads"] = 1;
  config["limits"]["drain_ms"] = kDayMs;
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  RawTrainer holding(io, server, 0, 2), before(io, server, 1, 2, {.incarnation = 7});
  holding.initializeZeros();
  PSD_REQUIRE_OK(before.awaitModel());
  PSD_REQUIRE_OK(holding.push({1, 0, 0}, kFirst));
  config["optimizer"]["lr"] = 2.0;
  auto [reload, step, waiting] = closeGate(server, config, before);
  auto next = before.startPush({step + 1}, dataOf(kFirst));
  awaitAllRead(before);

  RawTrainer after(io, server, 1, 2, {.incarnation = 7, .daemon = before.daemon()});
  REQUIRE(after.resumed());
  std::vector<capnp::RemotePromise<schema::PushResult>> again;
  for (const uint64_t number : {step, step + 1}) {
    for (uint32_t shard : {0u, 1u}) {
      again.push_back(after.startPush({number, shard, 0}, dataOf(kFirst)));
      again.push_back(after.startPush({number, shard, 1024}, dataOf(kSecond)));
    }
  }
  awaitAllRead(after);
  pushRest(holding, 1);
  PSD_REQUIRE_OK(reload.get());
  for (auto& answer : again) CHECK(after.peer().wait(answer.dropPipeline()).isAccepted());
  for (auto* stale : {&waiting, &next}) {
    const auto answer = before.peer().wait(stale->dropPipeline());
    REQUIRE(answer.isError());
    CHECK(testing::statusFrom(answer.getError()).error().code == ErrorCode::sessionEnded);
  }
  CHECK(server.status()["shards"][0]["version"] == step + 2);
}

TEST_CASE(
    "Rejoin: an incomplete gradient of a lost trainer waits at the gate, and resumes under the next policy") {
  Json config = configOf(0);
  config["policy"]["type"] = "locked";
  config["threads"] = 1;
  config["limits"]["drain_ms"] = kDayMs;
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  RawTrainer holding(io, server, 0, 3), probe(io, server, 2, 3);
  holding.initializeZeros();
  PSD_REQUIRE_OK(probe.awaitModel());
  uint64_t daemon = 0;
  {
    RawTrainer before(io, server, 1, 3, {.incarnation = 7});
    PSD_REQUIRE_OK(before.awaitModel());
    PSD_REQUIRE_OK(before.push({1, 0, 0}, kFirst));
    PSD_REQUIRE_OK(before.push({1, 0, 1024}, kSecond));
    daemon = before.daemon();
  }
  server.statusWhen([](const Json& now) { return now["trainers_lost"] == 1; });
  RawTrainer after(io, server, 1, 3, {.incarnation = 7, .daemon = daemon});
  REQUIRE_FALSE(after.resumed());

  PSD_REQUIRE_OK(holding.push({1, 0, 0}, kFirst));
  config["policy"]["clip"]["norm"] = 1000.0;  // takes both shards together
  auto [reload, step, waiting] = closeGate(server, config, probe);
  const uint64_t taken = takenSlices(server, after);
  auto third = after.startPush({1, 1, 0}, dataOf(kFirst));
  auto fourth = after.startPush({1, 1, 1024}, dataOf(kSecond));
  CHECK(takenSlices(server, after) == taken);
  pushRest(holding, 1);
  PSD_REQUIRE_OK(reload.get());
  CHECK(after.peer().wait(third.dropPipeline()).isAccepted());
  const auto last = after.peer().wait(fourth.dropPipeline());
  REQUIRE(last.isAccepted());
  CHECK(last.getAccepted().getOutcome() == schema::PushOutcome::APPLIED);
  CHECK(probe.peer().wait(waiting.dropPipeline()).isAccepted());
  pushRest(probe, step);
  const Json status = server.status();
  for (int shard : {0, 1}) CHECK(status["shards"][shard]["version"] == step + 2);
}

TEST_CASE(
    "Rejoin: a trainer without a rank takes no other's rank unless needed, and none that does not fit") {
  LocalServer server(configOf(kDayMs));
  auto io = kj::setupAsyncIo();
  RawTrainer one(io, server, 0, 2, {.incarnation = 7});
  { RawTrainer away(io, server, 1, 2, {.incarnation = 8}); }
  const auto bothAreIn = [](const Json& now) {
    return now["trainers"].size() == 2 && now["trainers_lost"] == 0;
  };
  server.statusWhen([](const Json& now) { return now["trainers"][1]["connected"] == false; });
  const Status refused = testing::tryToJoin(io, server, 0, 4, {.incarnation = 9, .anyRank = true});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::worldSizeMismatch);
  CHECK(bothAreIn(server.status()));
  RawTrainer again(io, server, 0, 2, {.incarnation = 7, .daemon = one.daemon(), .anyRank = true});
  CHECK(again.resumed());
  CHECK(bothAreIn(server.status()));
  RawTrainer next(io, server, 0, 2, {.incarnation = 9, .anyRank = true});
  CHECK(server.status()["trainers_lost"] == 1);
}

TEST_CASE("Rejoin: a trainer that was gone for good comes back with what it had pushed") {
  LocalServer server(configOf(0));
  auto io = kj::setupAsyncIo();
  uint64_t daemon = 0;
  {
    RawTrainer before(io, server, 0, 1, {.incarnation = 7});
    before.initializeZeros();
    PSD_REQUIRE_OK(before.push({1, 0, 0}, std::vector<float>(1024, 1.0f)));
    PSD_REQUIRE_OK(before.push({1, 0, 1024}, std::vector<float>(976, 1.0f)));
    daemon = before.daemon();
  }
  server.statusWhen([](const Json& now) { return now["trainers_lost"] == 1 && now["trainers"].empty(); });
  RawTrainer after(io, server, 0, 1, {.incarnation = 7, .daemon = daemon});
  CHECK_FALSE(after.resumed());
  PSD_REQUIRE_OK(after.push({1, 0, 0}, std::vector<float>(1024, 1.0f)));
  CHECK(server.status()["shards"][0]["version"] == 1);
}

TEST_CASE("Rejoin: one whose rank another took does not come back") {
  LocalServer server(configOf(kDayMs));
  auto io = kj::setupAsyncIo();
  uint64_t daemon = 0;
  { daemon = RawTrainer(io, server, 0, 1, {.incarnation = 7}).daemon(); }
  server.statusWhen([](const Json& now) { return now["trainers"][0]["connected"] == false; });
  { RawTrainer next(io, server, 0, 1, {.incarnation = 8}); }
  server.statusWhen(
      [](const Json& now) { return now["trainers"][0]["connected"] == false && now["trainers_lost"] == 1; });
  // A trainer whose latest session was with another daemon also lost the rank here.
  for (const uint64_t last : {daemon, daemon + 2}) {
    const Status refused = testing::tryToJoin(io, server, 0, 1, {.incarnation = 7, .daemon = last});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::rankTaken);
    CHECK(refused.message().find("taken over by process") != std::string::npos);
  }
  // A new incarnation is accepted like any other.
  CHECK_FALSE(RawTrainer(io, server, 0, 1, {.incarnation = 9}).resumed());
}

}  // namespace
}  // namespace psd::rejoin_test
