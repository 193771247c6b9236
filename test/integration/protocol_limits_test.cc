// What one peer may make the daemon hold: messages, calls in progress, unread answers.

#include <memory>
#include <string>
#include <vector>

#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <unistd.h>

#include "common/os/host.h"
#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"
#include "test/support/async_backend.h"

namespace psd::protocol_limits_test {
namespace {

using namespace testing;

using Asked = std::vector<capnp::RemotePromise<schema::PullResult>>;

Asked ask(RawTrainer& trainer, uint64_t pulls) {
  Asked asked;
  for (uint64_t i = 0; i < pulls; i++) asked.push_back(trainer.startPull(i, 0, 0, kSliceMost));
  return asked;
}

/// 41 MB of answers, none of which is read.
Asked askAndNeverRead(RawTrainer& trainer) {
  trainer.peer().stream().pauseReading();
  return ask(trainer, 10'000);
}

#if defined(PSD_SANITIZE_ADDRESS) || defined(PSD_SANITIZE_THREAD)
constexpr bool kSanitized = true;  // memory figures are meaningless then
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

TEST_CASE("Protocol: a message beyond the limit ends its connection, and no other") {
  Json settings = config();
  settings["limits"]["message_bytes"] = 64 << 10;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer large(io, server, 0, 2), other(io, server, 1, 2);
  const std::vector<float> values(32 << 10);
  auto request = large.session().pushRequest();
  request.setGradient(dataOf(values));
  auto failed = kj::runCatchingExceptions([&] { large.peer().wait(request.send().dropPipeline()); });
  KJ_IF_MAYBE (exception, failed) {
    CHECK(exception->getType() == kj::Exception::Type::DISCONNECTED);
  } else {
    FAIL("the message was answered");
  }
  turnUntil(io, [&] { return server.status()["trainers_lost"] == 1; });
  CHECK(counter(server, "connections_dropped") == 1);
  // It was the initializer; the other trainer is now.
  auto awaited = other.peer().wait(other.session().awaitModelRequest().send().dropPipeline());
  CHECK(awaited.isMustInitialize());
  other.initializeZeros();
}

TEST_CASE("Protocol: a peer that asks and never reads costs little and is dropped") {
  Json settings = config("hogwild");
  settings["limits"] = {{"outgoing_bytes", 2 << 20}, {"slice_bytes", 1 << 20}, {"write_timeout_ms", 300}};
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  const uint64_t before = residentBytes();
  auto asked = askAndNeverRead(trainer);
  turnUntil(io, [&] {
    // Rejections are small, and many more answers may fit.
    for (auto& more : ask(trainer, 100)) asked.push_back(kj::mv(more));
    return counter(server, "connections_dropped") == 1;
  });
  CHECK(counter(server, "refused_overload") > 0);
  // Memory of both sides: they share this process.
  if (!kSanitized && !testsCuda()) CHECK(residentBytes() - before < 100 << 20);
  turnUntil(io, [&] { return server.status()["trainers_lost"] == 1; });
  CHECK(!RawTrainer(io, server, 0, 1).mustInitialize());
}

TEST_CASE("Protocol: what a device has yet to answer counts as queued for the peer") {
  const auto device = std::make_shared<AsyncBackend>();
  Json settings = config("hogwild");
  settings["limits"]["outgoing_bytes"] = 256 << 10;
  constexpr uint64_t kAnswers = (256 << 10) / (kSliceMost * sizeof(float)), kAsked = kAnswers + 36;
  LocalServer server(settings, device);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  KJ_DEFER(device->gate().open());
  device->gate().close();
  Asked asked = ask(trainer, kAsked);
  turnUntil(io, [&] { return counter(server, "refused_overload") == kAsked - kAnswers; });
  device->gate().open();
  uint64_t answers = 0;
  for (auto& each : asked) answers += trainer.peer().wait(each.dropPipeline()).isSlice() ? 1 : 0;
  CHECK(answers == kAnswers);
  PSD_REQUIRE_OK(trainer.pull(0, 0, kSliceMost));  // there is capacity again
}

TEST_CASE("Protocol: a peer with too many calls in progress is not listened to, and others are") {
  Json settings = config("bounded_staleness");
  settings["policy"]["bound"] = 0;
  settings["limits"]["calls"] = 16;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer flood(io, server, 0, 2), other(io, server, 1, 2);
  flood.initializeZeros();
  PSD_REQUIRE_OK(other.awaitModel());
  // Each of these waits for the other's push.
  const Asked waiting = flood.pullAhead(100);
  turnUntil(io, [&] { return counter(server, "paused_calls") == 1; });
  auto unheard = flood.peer().reading().pingRequest().send();
  for (int i = 0; i < 10; i++) PSD_REQUIRE_OK(other.pull(0, 0, 16));
  CHECK_FALSE(unheard.poll(io.waitScope));
  CHECK(counter(server, "pull_slices") == 10);
}

TEST_CASE("Protocol: of calls that may wait for ever a session has one of a kind, which counts as none") {
  Json settings = config("locked");
  settings["limits"]["calls"] = 16;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer first(io, server, 0, 2), trainer(io, server, 1, 2);
  std::vector<kj::Promise<void>> parked;
  const auto park = [&](auto request) {
    parked.push_back(request.send().ignoreResult().eagerlyEvaluate(nullptr));
  };
  park(trainer.session().noticeRequest());
  park(trainer.session().awaitModelRequest());
  for (int i = 0; i < 50; i++) {
    CHECK_FALSE(
        trainer.peer().wait(trainer.session().noticeRequest().send().dropPipeline()).getShuttingDown());
    const Status refused = trainer.awaitModel();
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.message() == "another awaitModel() of this session is already waiting");
  }
  first.initializeZeros();
  trainer.peer().wait(kj::mv(parked[1]));
  PSD_REQUIRE_OK(trainer.awaitModel());  // none is pending any more
  CHECK(counter(server, "paused_calls") == 0);
}

TEST_CASE(
    "Protocol: a message with many capabilities, or of a kind that is not spoken here, ends its connection") {
  LocalServer server(config());
  auto io = kj::setupAsyncIo();
  for (const bool unknownKind : {false, true}) {
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<capnp::rpc::Message>();
    if (unknownKind) {
      root.initProvide();
    } else {
      root.initCall().initParams().initCapTable(1000);
    }
    const auto words = capnp::messageToFlatArray(message);
    auto fd = connectTo(parseAddress(server.address()).value(), std::chrono::seconds(60));
    PSD_REQUIRE_OK(fd);
    REQUIRE(write(fd->get(), words.begin(), words.asBytes().size()) ==
            static_cast<ssize_t>(words.asBytes().size()));
    turnUntil(io, [&] { return counter(server, "connections_dropped") == (unknownKind ? 2 : 1); });
  }
}

TEST_CASE("Protocol: the pieces of a gradient are limited") {
  constexpr uint64_t kPieces = 4096, kPiece = 16;
  Json settings = config("locked");
  settings["shards"] = 1;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  constexpr uint64_t kWide = 2 * kPiece * (kPieces + 1);
  RawTrainer trainer(io, server, 0, 1, {.model = {"wide", {{"w", DType::f32, {kWide}}}}});
  for (uint64_t at = 0; at < kWide; at += kSliceMost) {
    const std::vector<float> zeros(std::min(kSliceMost, kWide - at));
    PSD_REQUIRE_OK(trainer.initialize(0, at, zeros));
  }
  PSD_REQUIRE_OK(trainer.initialized());
  const std::vector<float> ones(kPiece, 1.f);
  const auto pushAt = [&](uint64_t piece) { return trainer.push({1, 0, piece * kPiece}, ones); };
  for (uint64_t i = 0; i < kPieces; i++) PSD_REQUIRE_OK(pushAt(2 * i));
  const Status refused = pushAt(2 * kPieces);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::badSlice);
  CHECK(refused.message().find("form 4096 separate pieces; send them in order") != std::string::npos);
}

TEST_CASE("Protocol: a peer that does not finish its calls is dropped") {
  Json settings = config("locked");
  settings["limits"]["calls"] = 16;
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawPeer peer(io, server.address());
  // Kept, and so never finished.
  std::vector<capnp::Response<schema::Reading::PingResults>> kept;
  const auto failed = kj::runCatchingExceptions([&] {
    for (int i = 0; i < 2200; i++)
      kept.push_back(peer.wait(peer.reading().pingRequest().send().dropPipeline()));
  });
  CHECK(failed != nullptr);
  CHECK(kept.size() > 2000);
  turnUntil(io, [&] { return counter(server, "connections_dropped") == 1; });
}

TEST_CASE("Protocol: the capabilities of a peer are limited, and dropped ones do not count") {
  Json limited = config();
  limited["limits"]["calls"] = 16;
  LocalServer server(limited);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  RawPeer peer(io, server.address());
  const auto observe = [&] { return peer.wait(peer.reading().observeRequest().send().dropPipeline()); };
  std::vector<schema::Reader::Client> held;
  for (auto answer = observe(); !answer.isError(); answer = observe()) {
    REQUIRE(held.size() < 17);
    held.push_back(answer.getObserving().getReader());
  }
  CHECK(held.size() == 16);
  const Status refused = statusFrom(observe().getError());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message() == "this connection holds 16 capabilities; limits.calls allows 16");
  held.pop_back();
  peer.wait(peer.reading().pingRequest().send().ignoreResult());
  CHECK(observe().isObserving());
}

TEST_CASE("Protocol: a connection waits for one move, and is notified if the daemon ends without any") {
  auto io = kj::setupAsyncIo();
  std::unique_ptr<RawPeer> peer;
  kj::Promise<capnp::Response<schema::Reading::MovedResults>> waits = nullptr;
  {
    LocalServer server(config());
    peer = std::make_unique<RawPeer>(io, server.address());
    const auto ask = [&] { return peer->reading().movedRequest().send().dropPipeline(); };
    const auto refused = [&] {
      std::string why;
      const auto failed = kj::runCatchingExceptions([&] { static_cast<void>(peer->wait(ask())); });
      KJ_IF_MAYBE (exception, failed) why = exception->getDescription().cStr();
      return why.find("already waits for a move") != std::string::npos;
    };
    waits = ask();
    CHECK(refused());
    peer->wait(peer->reading().pingRequest().send().ignoreResult());
    waits = nullptr;  // the peer stops waiting
    waits = ask();
    CHECK(refused());
  }
  const auto told = peer->wait(kj::mv(waits));
  CHECK(told.getTo().size() == 0);
  CHECK(told.getMove() == 0);
}

TEST_CASE("Protocol: a peer that never reads, and is gone, is missed") {
  LocalServer server(config("hogwild"));
  auto io = kj::setupAsyncIo();
  auto trainer = kj::heap<RawTrainer>(io, server, 0, 1);
  trainer->initializeZeros();
  {
    auto asked = askAndNeverRead(*trainer);
    turnUntil(io, [&] { return counter(server, "pull_slices") > 0; });
  }
  trainer = nullptr;
  turnUntil(io, [&] { return server.status()["trainers_lost"] == 1; });
  CHECK(counter(server, "connections_dropped") == 0);
}

}  // namespace psd::protocol_limits_test
