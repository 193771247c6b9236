// Messages that the schema allows and the protocol does not: each is answered with a typed error, or ends
// that peer's connection, and the daemon continues to serve the others.

#include <cmath>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include <capnp/ez-rpc.h>
#include <sys/socket.h>

#include "common/types/model_layout.h"
#include "server/client/admin_client.h"
#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::protocol_test {
namespace {

using namespace testing;

void checkRefused(const Status& status, ErrorCode code, const std::string& words = "") {
  REQUIRE(!status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find(words) != std::string::npos);
}

std::vector<float> ones(uint64_t count) { return std::vector<float>(count, 1.0f); }

/// The model, read by an ordinary client on a thread of its own; empty if that fails.
std::vector<float> modelOf(const LocalServer& server) {
  return std::async(std::launch::async,
                    [&]() -> std::vector<float> {
                      ClientOptions options;
                      options.servers = {server.address()};
                      auto client = Client::connect(options);
                      std::vector<float> values(kElements);
                      bool read = client.ok() && (*client)->observe(model()).ok() &&
                                  (*client)->pull(values).wait().ok();
                      return read ? values : std::vector<float>();
                    })
      .get();
}

}  // namespace

TEST_CASE("Protocol: another version is refused, and says so on both sides") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  auto request = peer.login().loginRequest();
  request.setProtocolVersion(99);
  request.setPeer("a peer from the future\n\x1b[31m");
  auto answer = peer.wait(request.send().dropPipeline());
  CHECK(answer.getProtocolVersion() == schema::PROTOCOL_VERSION);
  const Status status = wire::readStatus(answer.getStatus());
  checkRefused(status, ErrorCode::protocolMismatch, "version 99");
  CHECK(!answer.hasReading());
  CHECK(!answer.hasTraining());
  CHECK(!answer.hasAdmin());
  CHECK(status.message().find("speaks version " + std::to_string(schema::PROTOCOL_VERSION)) !=
        std::string::npos);
  CHECK(status.message().find('\x1b') == std::string::npos);
  peer.wait(peer.reading().pingRequest().send().ignoreResult());  // the same peer, with the right version
}

/// Speaks Cap'n Proto RPC with another interface. Owned by one thread, which it starts.
class ForeignServer {
 public:
  explicit ForeignServer(const std::string& path) {
    std::promise<void> listens;
    thread_ = std::thread([this, path, &listens] {
      capnp::EzRpcServer server(kj::heap<Foreign>(), "unix:" + path);
      auto stop = kj::newPromiseAndCrossThreadFulfiller<void>();
      stop_ = kj::mv(stop.fulfiller);
      server.getPort().wait(server.getWaitScope());
      listens.set_value();
      stop.promise.wait(server.getWaitScope());
    });
    listens.get_future().wait();
  }
  ~ForeignServer() {
    stop_->fulfill();
    thread_.join();
  }

 private:
  class Foreign final : public schema::SharedMemory::Server {};

  kj::Own<kj::CrossThreadPromiseFulfiller<void>> stop_;
  std::thread thread_;
};

TEST_CASE("Protocol: a server of another protocol is named as such, at once") {
  const TempDir folder;
  const std::string path = folder.file("socket");
  const ForeignServer server(path);
  ClientOptions options;
  options.servers = {"unix://" + path};
  const auto client = Client::connect(options);
  const std::string expected =
      "speaks another protocol than version " + std::to_string(schema::PROTOCOL_VERSION);
  checkRefused(client.status(), ErrorCode::protocolMismatch, expected);
  const auto status = fetchStatusJson(parseAddress(options.servers[0]).value(), std::chrono::seconds(60));
  checkRefused(status.status(), ErrorCode::protocolMismatch, expected);
}

TEST_CASE("Protocol: a peer that has not logged in can do nothing else") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  const auto unknown = [&](auto promise) { CHECK_THROWS(peer.wait(promise.ignoreResult())); };
  unknown(peer.login().castAs<schema::Training>().joinRequest().send());
  unknown(peer.login().castAs<schema::Training>().attachRequest().send());
  unknown(peer.login().castAs<schema::Reading>().observeRequest().send());
  unknown(peer.login().castAs<schema::Admin>().stopRequest().send());
  CHECK(server.status()["state"] == "waiting for a model");
}

TEST_CASE("Protocol: a second login gives what the first one gave") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  for (int i = 0; i < 1000; i++) {  // far more than limits.calls allows capabilities
    auto request = peer.login().loginRequest();
    request.setProtocolVersion(schema::PROTOCOL_VERSION);
    auto answer = peer.wait(request.send().dropPipeline());
    REQUIRE(answer.getStatus().isOk());
    peer.wait(answer.getReading().pingRequest().send().ignoreResult());
  }
}

TEST_CASE("Protocol: models that cannot be") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  auto refuse = [&](const ModelSpec& spec, const std::string& words, std::optional<uint64_t> signature = {}) {
    auto request = peer.training().joinRequest();
    request.setWorldSize(1);
    wire::writeModel(spec, request.initModel());
    if (signature) request.getModel().setSignature(*signature);
    auto answer = peer.wait(request.send().dropPipeline());
    REQUIRE(answer.isError());
    checkRefused(statusFrom(answer.getError()), ErrorCode::invalidArgument, words);
  };
  refuse({"none", {}}, "at least one tensor");
  refuse({"zero", {{"w", DType::f32, {3, 0}}}}, "'w' has a dimension of size 0");
  refuse({"twice", {{"w", DType::f32, {3}}, {"w", DType::f32, {3}}}}, "'w' appears twice");
  refuse({"name", {{"a\nb", DType::f32, {3}}}}, "visible ASCII");
  refuse({"huge", {{"w", DType::f32, {1ull << 40, 1ull << 40}}}}, "2^40");
  refuse(model(), "signature", model().signature() + 1);
  CHECK(counter(server, "joins_refused") == 6);
  RawTrainer(io, server, 0, 1).initializeZeros();
}

TEST_CASE("Protocol: impossible samples are rejected") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  const std::vector<HeldSamples> held(2000, {Step{1}, {0, 0, 1}});
  const Status refused = tryToJoin(io, server, 0, 1, {.incarnation = 7, .held = held});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message() == "samples of 2000 steps; a trainer holds those of at most 1024");
}

TEST_CASE("Protocol: no pull and no push before the model has values") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawTrainer first(io, server, 0, 2), second(io, server, 1, 2);
  CHECK(first.mustInitialize());
  CHECK(!second.mustInitialize());
  for (RawTrainer* trainer : {&first, &second}) {
    checkRefused(trainer->push({}, ones(16)), ErrorCode::notReady);
    checkRefused(trainer->pull(0, 0, 16), ErrorCode::notReady);
  }
  checkRefused(second.initialize(0, 0, ones(16)), ErrorCode::invalidArgument, "not the initializer");
  checkRefused(second.initialized(), ErrorCode::invalidArgument, "not the initializer");
  auto observe = first.peer().reading().observeRequest();
  checkRefused(statusFrom(first.peer().wait(observe.send().dropPipeline()).getError()), ErrorCode::notReady);
  first.initializeZeros();
  PSD_REQUIRE_OK(first.pull(0, 0, 16));
  checkRefused(first.initialize(0, 0, ones(16)), ErrorCode::invalidArgument, "not the initializer");
}

TEST_CASE("Protocol: initial values must be whole, once, and finite") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  checkRefused(trainer.initialized(), ErrorCode::badSlice, "0 of its 2000");
  PSD_REQUIRE_OK(trainer.initialize(0, 0, ones(1024)));
  checkRefused(trainer.initialize(0, 0, ones(1024)), ErrorCode::badSlice, "twice");
  checkRefused(trainer.initialize(0, 1008, ones(32)), ErrorCode::badSlice, "twice");
  checkRefused(trainer.initialize(0, 1024, {NAN}), ErrorCode::badSlice, "multiples of 16");
  checkRefused(trainer.initialize(0, 1984, std::vector<float>(16, INFINITY)), ErrorCode::nonFinite);
  checkRefused(trainer.initialized(), ErrorCode::badSlice, "1024 of its 2000");
  PSD_REQUIRE_OK(trainer.initialize(0, 1024, ones(976)));
  checkRefused(trainer.initialized(), ErrorCode::badSlice, "shard 1");
  PSD_REQUIRE_OK(trainer.initialize(1, 0, ones(1024)));
  PSD_REQUIRE_OK(trainer.initialize(1, 1024, ones(976)));
  PSD_REQUIRE_OK(trainer.initialized());
  CHECK(modelOf(server) == ones(kElements));
}

TEST_CASE("Protocol: a gradient has a part of each shard, or nothing of it is taken") {
  LocalServer server(config("locked"));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  for (const uint32_t parts : {1u, 3u, UINT32_MAX}) {
    checkRefused(trainer.push({.parts = parts}, ones(16)), ErrorCode::badSlice, "expected one per shard, 2");
  }
  CHECK(counter(server, "push_slices") == 0);
  for (const uint32_t shard : {0u, 1u}) trainer.pushShard(shard, 1);
  CHECK(counter(server, "updates") == 2);
}

TEST_CASE("Protocol: a step that a newer one gave up is not taken up again") {
  LocalServer server(config("sync"));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  const auto push = [&](uint64_t step, uint32_t shard, uint64_t offset, uint64_t count) {
    return trainer.push({.step = step, .shard = shard, .offset = offset}, ones(count));
  };
  PSD_REQUIRE_OK(push(1, 0, 0, 1008));
  PSD_REQUIRE_OK(push(1, 0, 1008, 992));
  PSD_REQUIRE_OK(push(2, 1, 0, 1008));
  // Otherwise a round would have two parts for one shard, and none for the other.
  checkRefused(push(1, 0, 0, 1008), ErrorCode::badSlice, "step 2 has already started");
  PSD_REQUIRE_OK(push(2, 0, 0, 1008));
  PSD_REQUIRE_OK(push(2, 0, 1008, 992));
  PSD_REQUIRE_OK(push(2, 1, 1008, 992));
  CHECK(counter(server, "gradients") == 1);
}

TEST_CASE("Protocol: slices that cannot be") {
  for (const std::string policy : {"hogwild", "locked"}) {
    INFO(policy);
    LocalServer server(config(policy));
    auto io = kj::setupAsyncIo();
    RawTrainer trainer(io, server, 0, 1);
    trainer.initializeZeros();
    uint64_t before = counter(server, "refused_slices");

    struct Wrong {
      uint32_t shard;
      uint64_t offset, count;
      const char* words;
    };
    const Wrong wrongs[] = {
        {2, 0, 16, "there are 2 shards"},
        {UINT32_MAX, 0, 16, "there are 2 shards"},
        {0, 0, 0, "2000 elements"},
        {0, 2000, 16, "2000 elements"},
        {0, 1984, 32, "2000 elements"},
        {0, UINT64_MAX, 16, "2000 elements"},
        {0, UINT64_MAX - 15, 16, "2000 elements"},  // the end would wrap around
        {0, 1ull << 62, 16, "2000 elements"},
        {0, 8, 16, "multiples of 16"},
        {0, 0, 15, "multiples of 16"},
        {0, 0, 1040, "limits.slice_bytes"},
    };
    for (const Wrong& wrong : wrongs) {
      INFO("shard " << wrong.shard << ", " << wrong.count << " at " << wrong.offset);
      checkRefused(trainer.push({1, wrong.shard, wrong.offset}, ones(wrong.count)), ErrorCode::badSlice,
                   wrong.words);
      checkRefused(trainer.pull(wrong.shard, wrong.offset, wrong.count), ErrorCode::badSlice, wrong.words);
    }
    checkRefused(trainer.pull(0, 0, UINT64_MAX), ErrorCode::badSlice, "2000 elements");
    const kj::byte odd[67] = {};
    checkRefused(trainer.push({}, capnp::Data::Reader(odd, sizeof odd)), ErrorCode::badSlice);
    CHECK(counter(server, "refused_slices") == before + 2 * std::size(wrongs) + 2);
    CHECK(modelOf(server) == std::vector<float>(kElements, 0.0f));
  }
}

TEST_CASE("Protocol: hyperparameters that cannot be") {
  Json withoutOptimizer = config();
  withoutOptimizer.erase("optimizer");
  LocalServer server(withoutOptimizer);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  const std::vector<double> set{0.5, 0, 0, 0};
  const auto push = [&](const Hyperparameters& carried) {
    return trainer.push({.hyperparameters = &carried}, ones(1008));
  };
  checkRefused(push({{set}, {}}), ErrorCode::badSlice, "0 runs of 1 sets");
  checkRefused(push({{set}, {{1008, 0}, {2000, 0, false}}}), ErrorCode::badSlice, "at most 1 runs");
  checkRefused(push({{set}, {{1008, 0}}}), ErrorCode::badSlice, "they cover 1008 of 2000");
  checkRefused(push({{set}, {{2016, 0}}}), ErrorCode::badSlice, "a run from 0 to 2016 of 2000");
  checkRefused(push({{set}, {{2000, 1}}}), ErrorCode::badSlice, "a run has set 1, and there are 1");
  checkRefused(push({{{0.5, 0, 0}}, {{2000, 0}}}), ErrorCode::invalidArgument, "carries 3 hyperparameters");
  checkRefused(push({{{0.5, 0.9, 0, 0}}, {{2000, 0}}}), ErrorCode::invalidArgument, "momentum must be 0");
  checkRefused(push({{{INFINITY, 0, 0, 0}}, {{2000, 0}}}), ErrorCode::invalidArgument, "a push's lr");
  const Hyperparameters right{{set}, {{2000, 0}}}, other{{{0.25, 0, 0, 0}}, {{2000, 0}}};
  PSD_REQUIRE_OK(push(right));
  checkRefused(trainer.push({.offset = 1008, .hyperparameters = &other}, ones(992)), ErrorCode::badSlice,
               "not those of an earlier slice");
  checkRefused(trainer.push({.offset = 1008}, ones(992)), ErrorCode::badSlice,
               "not those of an earlier slice");
  PSD_REQUIRE_OK(trainer.push({.offset = 1008, .hyperparameters = &right}, ones(992)));
  for (const auto& [offset, count] : kSlicesOfShard) {
    PSD_REQUIRE_OK(trainer.push({.shard = 1, .offset = offset, .hyperparameters = &right}, ones(count)));
  }
  CHECK(modelOf(server) == std::vector<float>(kElements, -0.5f));
  LocalServer configured(config());
  RawTrainer refused(io, configured, 0, 1);
  refused.initializeZeros();
  checkRefused(refused.push({.hyperparameters = &right}, ones(1008)), ErrorCode::invalidArgument,
               "the daemon's configuration has the optimizer");
}

TEST_CASE("Protocol: slices of one push that do not fit together") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  PSD_REQUIRE_OK(trainer.push({5, 0, 0}, ones(1024)));
  checkRefused(trainer.push({5, 0, 1008}, ones(992)), ErrorCode::badSlice,
               "already arrived in another slice");
  checkRefused(trainer.push({5, 0, 1024, 7}, ones(976)), ErrorCode::badSlice, "basis");
  checkRefused(trainer.push({4, 0, 1024}, ones(976)), ErrorCode::badSlice, "step 5 has already started");
  CHECK(modelOf(server) == std::vector<float>(kElements, 0.0f));
  PSD_REQUIRE_OK(trainer.push({5, 0, 1024}, ones(976)));
  checkRefused(trainer.push({4, 0, 0}, ones(1024)), ErrorCode::badSlice, "step 5 has already started");

  // A later step abandons the unfinished previous one.
  PSD_REQUIRE_OK(trainer.push({6, 1, 0}, std::vector<float>(1024, 100.0f)));
  PSD_REQUIRE_OK(trainer.push({7, 1, 1024}, ones(976)));
  PSD_REQUIRE_OK(trainer.push({7, 1, 0}, ones(1024)));
  CHECK(modelOf(server) == std::vector<float>(kElements, -1.0f));
  CHECK(server.status()["shards"][1]["version"] == 1);
}

TEST_CASE("Protocol: a trainer that left is gone") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  PSD_REQUIRE_OK(trainer.leave());
  checkRefused(trainer.push({}, ones(16)), ErrorCode::notReady, "left");
  checkRefused(trainer.pull(0, 0, 16), ErrorCode::notReady, "left");
  PSD_REQUIRE_OK(trainer.leave());
  Json status = server.status();
  CHECK(status["trainers"].empty());
  CHECK(status["trainers_lost"] == 0);
  CHECK(!RawTrainer(io, server, 0, 1).mustInitialize());  // the rank is free, the model keeps its values
}

TEST_CASE("Protocol: a trainer that vanishes in mid-push leaves nothing behind under locked") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  RawTrainer stays(io, server, 0, 2);
  stays.initializeZeros();
  {
    RawTrainer vanishes(io, server, 1, 2);
    PSD_REQUIRE_OK(vanishes.push({1, 0, 0}, std::vector<float>(1024, 100.0f)));
    PSD_REQUIRE_OK(vanishes.push({1, 1, 1024}, std::vector<float>(976, 100.0f)));
  }
  turnUntil(io, [&] { return server.status()["trainers_lost"] == 1; });
  CHECK(modelOf(server) == std::vector<float>(kElements, 0.0f));
  for (uint32_t shard : {0u, 1u}) {
    PSD_REQUIRE_OK(stays.push({1, shard, 1024}, ones(976)));
    PSD_REQUIRE_OK(stays.push({1, shard, 0}, ones(1024)));
  }
  CHECK(modelOf(server) == std::vector<float>(kElements, -1.0f));
}

TEST_CASE("Protocol: when the initializer is gone, a waiting trainer takes over") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  auto initializer = kj::heap<RawTrainer>(io, server, 0, 2);
  REQUIRE(initializer->mustInitialize());
  PSD_REQUIRE_OK(initializer->initialize(0, 0, std::vector<float>(1024, 5.0f)));
  auto waits = std::async(std::launch::async, [&]() -> Result<JoinInfo> {
    ClientOptions options;
    options.servers = {server.address()};
    PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
    const std::vector<float> values(kElements, 2.0f);
    PSD_ASSIGN_OR_RETURN(JoinInfo info,
                         client->join({Rank{1}, 2}, model(), [&] { return std::span(values); }));
    PSD_RETURN_IF_ERROR(client->leave());
    return info;
  });
  turnUntil(io, [&] { return server.status()["trainers"].size() == 2; });
  CHECK(waits.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  initializer = nullptr;
  auto info = waits.get();
  PSD_REQUIRE_OK(info);
  CHECK(info->initializedModel);
  CHECK(modelOf(server) == std::vector<float>(kElements, 2.0f));
}

}  // namespace psd::protocol_test
