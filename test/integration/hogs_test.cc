// Peers that hold shared resources: none holds them forever, and no dead or unresponsive trainer stays
// joined.

#include <memory>
#include <thread>
#include <vector>

#include <unistd.h>

#include "common/types/model_layout.h"
#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"
#include "trainer/client/api/client.h"

namespace psd::hogs_test {
namespace {

using namespace testing;

constexpr uint64_t kLeaseMs = 600;

bool noneJoined(const Json& status) { return status["trainers"].empty() && status["trainers_lost"] == 1; }

Json boundedConfig() {
  Json settings = config("bounded_staleness");
  settings["policy"]["bound"] = 0;
  settings["limits"]["calls"] = 16;
  settings["membership"] = {{"lease_ms", kLeaseMs}, {"grace_ms", 100}};
  return settings;
}

/// A second trainer, which makes no step and stays joined until it is destroyed.
class Bystander {
 public:
  explicit Bystander(const LocalServer& server) : thread_([this, &server] { live(server); }) {}
  ~Bystander() {
    done_ = true;
    thread_.join();
  }

 private:
  void live(const LocalServer& server) {
    auto io = kj::setupAsyncIo();
    RawTrainer trainer(io, server, 1, 2);
    while (!done_) {
      static_cast<void>(trainer.keepAlive());
      io.provider->getTimer().afterDelay(kLeaseMs / 8 * kj::MILLISECONDS).wait(io.waitScope);
    }
  }

  std::atomic<bool> done_{false};
  std::thread thread_;
};

bool isGone(const Json& status, uint32_t rank) {
  for (const Json& trainer : status["trainers"]) {
    if (trainer["rank"] == rank) return false;
  }
  return status["trainers_lost"].get<uint64_t>() > 0;
}

TEST_CASE("Hogs: a trainer that dies while the daemon does not listen to it is lost") {
  LocalServer server(boundedConfig());
  auto io = kj::setupAsyncIo();
  auto trainer = std::make_unique<RawTrainer>(io, server, 0, 2);
  trainer->initializeZeros();
  const Bystander other(server);
  server.statusWhen([](const Json& status) { return status["trainers"].size() == 2; });
  {
    const auto waiting = trainer->pullAhead(1'000);
    turnUntil(io, [&] { return counter(server, "paused_calls") == 1; });
  }
  trainer = nullptr;
  turnUntil(io, [&] { return isGone(server.status(), 0); });
}

TEST_CASE("Hogs: a trainer that the daemon does not listen to, and that stands still, is lost") {
  LocalServer server(boundedConfig());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 2);
  trainer.initializeZeros();
  const Bystander other(server);
  server.statusWhen([](const Json& status) { return status["trainers"].size() == 2; });
  const auto waiting = trainer.pullAhead(100);
  turnUntil(io, [&] { return counter(server, "paused_calls") == 1; });
  turnUntil(io, [&] { return isGone(server.status(), 0); });
}

TEST_CASE("Hogs: an old connection that the daemon does not listen to keeps no trainer in") {
  LocalServer server(boundedConfig());
  auto io = kj::setupAsyncIo();
  RawTrainer before(io, server, 0, 2, {.incarnation = 7});
  before.initializeZeros();
  const Bystander other(server);
  server.statusWhen([](const Json& status) { return status["trainers"].size() == 2; });
  const auto waiting = before.pullAhead(100);
  turnUntil(io, [&] { return counter(server, "paused_calls") == 1; });
  RawTrainer after(io, server, 0, 2, {.incarnation = 7});
  CHECK(after.resumed());
  turnUntil(io, [&] { return isGone(server.status(), 0); });
}

TEST_CASE("Hogs: what was lost by its lease keeps no connection") {
  Json settings = config();
  settings["membership"] = {{"lease_ms", kLeaseMs}, {"grace_ms", 100}};
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  turnUntil(io, [&] { return noneJoined(server.status()); });
  // The connection that requests the status is open.
  turnUntil(io, [&] { return server.status()["gauges"]["connections_open"] == 1; });
  CHECK_THROWS(trainer.keepAlive());
}

// --- Memory for incoming messages ---

constexpr uint64_t kMessageBytes = 256 << 10, kSliceBytes = 128 << 10;

Json tightConfig() {
  Json settings = config("locked");
  settings["limits"] = {
      {"message_bytes", kMessageBytes}, {"in_flight_bytes", 2 * kMessageBytes}, {"slice_bytes", kSliceBytes}};
  settings["membership"] = {{"lease_ms", 10'000}, {"grace_ms", 100}};
  return settings;
}

ModelSpec large() { return {"large", {{"w", DType::f32, {200'000}}}}; }

/// A well-behaved trainer makes some steps and leaves.
void trainNormally(const LocalServer& server, uint32_t rank, uint32_t worldSize) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = kSliceBytes;
  const std::vector<float> ones(ModelLayout(large()).totalElements(), 1.f);
  std::vector<float> values(ones.size());
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK(
      (*client)->join({Rank{rank}, worldSize}, large(), [&] { return std::span<const float>(ones); }));
  for (uint64_t step = 1; step <= 5; step++) {
    PSD_REQUIRE_OK((*client)->pull(values).wait());
    PSD_REQUIRE_OK((*client)->push(Step{step}, ones, 1, {}).wait());
  }
  PSD_REQUIRE_OK((*client)->leave());
}

TEST_CASE("Hogs: parked calls hold nothing of what others need, however large their messages") {
  LocalServer server(tightConfig());
  auto io = kj::setupAsyncIo();
  std::vector<std::unique_ptr<RawTrainer>> hogs;
  std::vector<kj::Promise<void>> parked;
  const std::vector<float> ballast(kMessageBytes / sizeof(float) - 1024);
  for (uint32_t rank = 1; rank <= 4; rank++) {
    hogs.push_back(std::make_unique<RawTrainer>(io, server, rank, 5, RawLife{.model = large()}));
    for (const uint16_t method : {2, 5}) {  // awaitModel, notice
      // They take no parameters; passing some is still legal.
      auto request = hogs.back()->session().typelessRequest(capnp::typeId<schema::Trainer>(), method,
                                                            capnp::MessageSize{ballast.size() / 2 + 64, 0});
      request.initAs<schema::Trainer::InitializeParams>().setValues(dataOf(ballast));
      parked.push_back(request.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
    }
    hogs.back()->peer().wait(hogs.back()->peer().reading().pingRequest().send().ignoreResult());
  }
  CHECK(server.status()["in_flight_bytes"] == 0);
  std::thread([&] { trainNormally(server, 0, 5); }).join();
}

/// Connections that start a message of `announced` bytes and stop after `sent` of them.
std::vector<OwnFd> beginMessages(const LocalServer& server, size_t count, uint64_t announced, uint64_t sent) {
  std::vector<OwnFd> sockets;
  for (size_t i = 0; i < count; i++) {
    auto fd = connectTo(parseAddress(server.address()).value(), std::chrono::seconds(60));
    PSD_REQUIRE_OK(fd);
    std::vector<uint32_t> bytes(2 + sent / sizeof(uint32_t));
    bytes[1] = static_cast<uint32_t>(announced / sizeof(capnp::word));  // size of the only segment
    const auto* at = reinterpret_cast<const char*>(bytes.data());
    for (size_t left = bytes.size() * sizeof(uint32_t); left > 0;) {
      const ssize_t written = write(fd->get(), at, left);
      if (written < 0) continue;  // the socket is full at the moment
      at += written;
      left -= static_cast<size_t>(written);
    }
    sockets.push_back(std::move(*fd));
  }
  return sockets;
}

TEST_CASE("Hogs: messages that are announced and do not come hold nothing of what others need") {
  LocalServer server(tightConfig());
  const auto sockets = beginMessages(server, 128, kMessageBytes, 0);
  std::thread([&] { trainNormally(server, 0, 1); }).join();
  CHECK(server.status()["counters"]["connections_dropped"] == 0);  // they blocked no other peer
}

TEST_CASE("Hogs: messages that stop half-way give way to those of others") {
  LocalServer server(tightConfig());
  const auto sockets = beginMessages(server, 16, kMessageBytes, kMessageBytes / 2);
  server.statusWhen([](const Json& status) { return status["in_flight_bytes"] == 2 * kMessageBytes; });
  std::thread([&] { trainNormally(server, 0, 1); }).join();
  CHECK(server.status()["counters"]["connections_dropped"].get<uint64_t>() >= 2);
}

// --- Copies of shards ---

TEST_CASE("Hogs: readers that stop in the midst of a pull hold copies within the limit, and not for ever") {
  const uint64_t shardBytes = 100'000 * sizeof(float);
  Json settings = tightConfig();
  settings["limits"]["snapshot_bytes"] = 3 * shardBytes;
  settings["limits"]["pull_timeout_ms"] = 300;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  std::thread([&] { trainNormally(server, 0, 1); }).join();
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<schema::Reader::Client> readers;
  const auto read = [&](schema::Reader::Client& reader, uint64_t offset) {
    auto request = reader.pullRequest();
    request.setPull(1);
    request.setOffset(offset);
    request.setCount(16);
    return request.send();
  };
  std::vector<kj::Promise<void>> slices;
  for (int i = 0; i < 8; i++) {
    peers.push_back(std::make_unique<RawPeer>(io, server.address()));
    readers.push_back(peers.back()
                          ->wait(peers.back()->reading().observeRequest().send().dropPipeline())
                          .getObserving()
                          .getReader());
    slices.push_back(read(readers.back(), 0).ignoreResult().eagerlyEvaluate(nullptr));
    std::thread([&] { trainNormally(server, 0, 1); }).join();  // so that the next one reads another version
    CHECK(server.status()["snapshot_bytes"].get<uint64_t>() <= 3 * shardBytes);
  }
  for (auto& slice : slices) peers.front()->wait(kj::mv(slice));
  turnUntil(io, [&] { return server.status()["snapshot_bytes"] == 0; });
  // A peer that continues such a pull gets an error, and can restart it.
  const auto late = peers.back()->wait(read(readers.back(), 16).dropPipeline());
  REQUIRE(late.isError());
  CHECK(statusFrom(late.getError()).error().code == ErrorCode::deadlineExceeded);
  auto request = readers.back().pullRequest();
  request.setPull(2);
  request.setCount(16);
  CHECK(peers.back()->wait(request.send().dropPipeline()).isSlice());
}

TEST_CASE("Hogs: a pull that the policy lets wait is not given up for that") {
  Json settings = boundedConfig();
  settings["shards"] = 2;
  settings["membership"] = {{"lease_ms", 86'400'000}, {"grace_ms", 0}};
  settings["limits"]["pull_timeout_ms"] = 50;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer ahead(io, server, 0, 2), behind(io, server, 1, 2);
  ahead.initializeZeros();
  PSD_REQUIRE_OK(behind.awaitModel());
  auto waiting = ahead.pullAhead(1);
  PSD_REQUIRE_OK(behind.pull(0, 0, 16));  // started and not continued: shows when the time is over
  turnUntil(io, [&] { return server.status()["snapshot_bytes"] == 0; });
  const Status late = behind.pull(0, 16, 16);
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::deadlineExceeded);
  for (const uint32_t shard : {0u, 1u}) behind.pushShard(shard, 1);
  CHECK(ahead.peer().wait(waiting[0].dropPipeline()).isSlice());
  PSD_REQUIRE_OK(ahead.pull(0, 16, 16));  // part of the same pull
}

// --- Work for the control loop ---

TEST_CASE("Hogs: floods of questions for the status hold up neither trainers nor the daemon's end") {
  LocalServer server(tightConfig());
  auto io = kj::setupAsyncIo();
  constexpr size_t kPeers = 50, kCalls = 200;
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<kj::Promise<void>> answers;
  size_t given = 0, refused = 0;
  for (size_t i = 0; i < kPeers; i++) {
    peers.push_back(std::make_unique<RawPeer>(io, server.address()));
    auto reading = peers.back()->reading();
    for (size_t call = 0; call < kCalls; call++) {
      answers.push_back(reading.statusRequest().send().then(
          [&given](auto&&) { given++; },
          [&refused](kj::Exception&& exception) {
            refused += exception.getType() == kj::Exception::Type::OVERLOADED ? 1 : 0;
          }));
      answers.back() = answers.back().eagerlyEvaluate(nullptr);
    }
  }
  std::thread([&] { trainNormally(server, 0, 1); }).join();
  turnUntil(io, [&] { return given + refused == kPeers * kCalls; });
  CHECK(given >= kPeers);  // each got at least one
  CHECK(refused > given);  // excess requests are rejected without work
}

}  // namespace
}  // namespace psd::hogs_test
