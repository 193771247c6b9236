// An executor keeps nothing of trainers that have departed once their sessions with the daemon have ended.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/vector.h>

#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/wire/convert.h"
#include "schema/executor.capnp.h"
#include "test/integration/executor_calls.h"
#include "test/integration/local_executor.h"
#include "test/integration/odd_models.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/streams.h"
#include "test/support/temp_dir.h"
#include "trainer/executor/remote/executor_connection.h"

namespace psd::executor_sessions_test {
namespace {

using testing::connectTo;
using testing::GatedModel;
using testing::LargeOutput;
using testing::LocalExecutor;
using testing::LocalServer;
using testing::until;
using Json = nlohmann::ordered_json;

/// Threads of this process.
size_t threadCount() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

TEST_CASE("Trainers that come and go, with a goodbye or without, leave no thread behind") {
  constexpr uint32_t kRanks = 1'000;  // a trainer that vanishes keeps its own for a while
  LocalServer server(Json{{"world_size", kRanks}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  uint64_t incarnations = 0;
  const auto comeAndGo = [&](uint64_t times) {
    for (uint64_t i = 0; i < times; i++) {
      const auto trainer = connectTo(executor);
      PSD_REQUIRE_OK(trainer->join({Rank{0}, kRanks, /*anyRank=*/true}, ++incarnations));
      if (i % 2 == 0) PSD_REQUIRE_OK(trainer->leave());
    }
    until([&] { return executor.status()["trainers"].empty() && executor.status()["ending"] == 0; });
  };
  comeAndGo(10);
  const size_t before = threadCount();
  comeAndGo(200);
  until([&] { return threadCount() <= before; });
}

TEST_CASE("Sessions of trainers that are gone are bounded, and end, where the daemon says nothing") {
  constexpr uint32_t kTrainers = 2;
  testing::TempDir folder;
  const std::string silent = "unix://" + folder.file("silent.sock");
  const auto listening = listenOn(*parseAddress(silent));
  PSD_REQUIRE_OK(listening);
  LocalExecutor executor(silent, {{"trainers", kTrainers}, {"connect_timeout_ms", 3'600'000}});
  const size_t before = threadCount();
  // The sessions of these trainers end one by one, seconds after they began: a slow machine needs more of
  // them.
  constexpr uint64_t kJoinsMax = 60;
  std::optional<Status> refused;
  for (uint64_t i = 1; i <= kJoinsMax && !refused; i++) {
    {
      const auto trainer = connectTo(executor);
      auto joining = std::async(std::launch::async, [&trainer, i] { return trainer->join({Rank{0}, 1}, i); });
      const auto answered = [&joining] {
        return joining.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      };
      until([&] { return answered() || executor.status()["trainers"].size() == 1; });
      trainer->interrupt();
      const Status outcome = joining.get().status();
      REQUIRE_FALSE(outcome.ok());
      if (outcome.error().code != ErrorCode::interrupted) refused = outcome;
    }
    until([&] { return executor.status()["trainers"].empty(); });
    CHECK(executor.status()["ending"] <= 2 * kTrainers);
  }
  REQUIRE(refused);
  CHECK(refused->error().code == ErrorCode::overloaded);
  CHECK_THAT(refused->message(), Catch::Matchers::Contains("have not ended"));
  until([&] { return executor.status()["ending"] == 0 && threadCount() <= before; });
}

TEST_CASE("A trainer of another protocol version is refused, and told both") {
  LocalServer server(Json::object());
  LocalExecutor executor(server.unixAddress(), Json::object());
  auto io = kj::setupAsyncIo();
  auto fd = psd::connectTo(*parseAddress(executor.address()), std::chrono::seconds(10));
  PSD_REQUIRE_OK(fd);
  auto stream = io.lowLevelProvider->wrapSocketFd(fd->release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  capnp::TwoPartyClient rpc(*stream);
  auto own = rpc.bootstrap().castAs<schema::Executor>();
  for (const uint32_t version :
       {schema::EXECUTOR_PROTOCOL_VERSION - 1, schema::EXECUTOR_PROTOCOL_VERSION + 1}) {
    auto hello = own.helloRequest();
    hello.setProtocolVersion(version);
    const Status refused = wire::readStatus(hello.send().wait(io.waitScope).getStatus());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::protocolMismatch);
    CHECK_THAT(refused.message(), Catch::Matchers::Contains("protocol version " + std::to_string(version)) &&
                                      Catch::Matchers::Contains("speaks version 2"));
  }
  // The first version has no steps of several contexts.
  CHECK(schema::EXECUTOR_PROTOCOL_VERSION >= 2U);
}

TEST_CASE("Unread answers are bounded, and the calls behind them are rejected") {
  constexpr uint64_t kMessageBytes = 1u << 20, kOutputBytes = kMessageBytes / 2;
  constexpr uint32_t kCalls = 40;
  LocalServer server(Json::object());
  std::promise<void> gate;
  LocalExecutor executor(server.unixAddress(), {{"message_bytes", kMessageBytes}},
                         [&](std::unique_ptr<ExecutionModel> model) {
                           auto large = std::make_unique<LargeOutput>(std::move(model), kOutputBytes / 4);
                           return std::make_unique<GatedModel>(std::move(large), gate.get_future().share());
                         });
  auto io = kj::setupAsyncIo();
  auto fd = psd::connectTo(*parseAddress(executor.address()), std::chrono::seconds(10));
  PSD_REQUIRE_OK(fd);
  testing::PausableStream stream(
      io.lowLevelProvider->wrapSocketFd(fd->release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP));
  capnp::TwoPartyClient rpc(stream);
  auto own = rpc.bootstrap().castAs<schema::Executor>();
  auto hello = own.helloRequest();
  hello.setProtocolVersion(schema::EXECUTOR_PROTOCOL_VERSION);
  hello.send().wait(io.waitScope);
  auto join = own.joinRequest();
  join.setWorldSize(1);
  join.setIncarnation(1);
  auto trainer = join.send().wait(io.waitScope).getTrainer();
  stream.pauseReading();
  kj::Vector<kj::Promise<bool>> answers;  // true: it has the outputs; false: overloaded
  for (uint32_t i = 0; i < kCalls; i++) {
    auto forward = trainer.forwardRequest();
    forward.setContext(i + 1);
    answers.add(forward.send().then([](auto answer) {
      const Status status = wire::readStatus(answer.getStatus());
      if (!status.ok()) CHECK(status.error().code == ErrorCode::overloaded);
      return status.ok();
    }));
  }
  const auto untilCalls = [&](const char* what, uint32_t count) {
    until([&] {
      io.waitScope.poll();
      const Json status = executor.status();
      return (status.contains(what) ? status : status["trainers"][0])[what] == count;
    });
  };
  untilCalls("calls", kCalls);  // all have arrived before the first is computed
  gate.set_value();
  untilCalls("forwards", kCalls);
  stream.resumeReading();
  const auto done = kj::joinPromises(answers.releaseAsArray()).wait(io.waitScope);
  const auto served = static_cast<uint64_t>(std::count(done.begin(), done.end(), true));
  CHECK(served >= 2);
  CHECK(served < kCalls / 2);  // two messages, and what the system buffers for a socket
}

}  // namespace
}  // namespace psd::executor_sessions_test
