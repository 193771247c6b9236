// What an executor keeps of trainers that are gone: nothing, once their sessions with the daemon have ended.

#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "common/os/address.h"
#include "common/os/socket.h"
#include "test/integration/executor_calls.h"
#include "test/integration/local_executor.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/temp_dir.h"
#include "trainer/remote/executor_connection.h"

namespace psd::executor_sessions_test {
namespace {

using testing::connectTo;
using testing::LocalExecutor;
using testing::LocalServer;
using testing::until;
using Json = nlohmann::ordered_json;

/// Of this process.
size_t threadCount() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

TEST_CASE("Trainers that come and go, with a goodbye or without, leave no thread behind") {
  constexpr uint32_t kRanks = 1'000;  // who goes without a goodbye keeps its own for a while
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
  for (uint64_t i = 1; i <= 2 * kTrainers; i++) {
    {
      const auto trainer = connectTo(executor);
      auto joining = std::async(std::launch::async, [&trainer, i] { return trainer->join({Rank{0}, 1}, i); });
      until([&] { return executor.status()["trainers"].size() == 1; });
      trainer->interrupt();
      CHECK(joining.get().status().error().code == ErrorCode::interrupted);
    }
    until([&] { return executor.status()["trainers"].empty(); });
  }
  CHECK(executor.status()["ending"] == 2 * kTrainers);
  const Status refused = connectTo(executor)->join({Rank{0}, 1}, 100).status();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK_THAT(refused.message(), Catch::Matchers::Contains("have not ended"));
  until([&] { return executor.status()["ending"] == 0 && threadCount() <= before; });
}

}  // namespace
}  // namespace psd::executor_sessions_test
