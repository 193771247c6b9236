// Trainers of an executor under faults: they stay joined until they say goodbye; calls are retried no longer
// than configured; and the executor tracks where the model is.

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/integration/executor_calls.h"
#include "test/integration/local_executor.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/temp_dir.h"
#include "trainer/executor/model_location.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/remote/remote_steps.h"

namespace psd::executor_faults_test {
namespace {

using testing::joinedTo;
using testing::LocalExecutor;
using testing::LocalServer;
using testing::TempDir;
using testing::until;
using Json = nlohmann::ordered_json;

constexpr uint32_t kSamples = 4;

std::vector<NamedTensor> images() {
  return {{"image",
           ElementType::f32,
           {kSamples, 1, 28, 28},
           std::vector<std::byte>(size_t{kSamples} * 28 * 28 * sizeof(float))}};
}

TEST_CASE("A trainer that is gone while its step waits for others has not left") {
  LocalServer server(
      Json{{"policy", {{"type", "sync"}}}, {"world_size", 2}, {"membership", {{"grace_ms", 600'000}}}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto other = joinedTo(executor, 1, 2);
  {
    const auto gone = joinedTo(executor, 0, 2);
    const auto forward = gone->forward(1, images(), true);
    PSD_REQUIRE_OK(forward);
    auto waiting = std::async(std::launch::async, [&] {
      return gone->backwardAndStep(1, forward->outputs, Step{1}, kSamples).status();
    });
    until([&] { return executor.status()["passes"] == 2 && executor.status()["calls"] == 1; });
    gone->interrupt();
    CHECK(waiting.get().error().code == ErrorCode::interrupted);
  }
  until([&] { return executor.status()["trainers"].size() == 1 && executor.status()["ending"] == 0; });
  CHECK(server.status()["trainers"].size() == 2);
  const auto back = joinedTo(executor, 0, 2);
  CHECK(server.status()["counters"]["trainers_returned"] == 1);
}

TEST_CASE("A step that never succeeds times out, and is reported, though its forward passes succeed") {
  LocalServer server(Json{{"policy", {{"type", "sync"}, {"round_timeout_ms", 1}, {"on_timeout", "fail"}}},
                          {"world_size", 2}});
  LocalExecutor executor(server.unixAddress(), Json::object());
  const auto other = joinedTo(executor, 1, 2);  // never steps
  std::vector<ClientEvent> events;
  auto steps = RemoteSteps::connect({.executor = executor.address(),
                                     .retryTimeout = std::chrono::milliseconds(2'500),
                                     .onEvent = [&](const ClientEvent& event) { events.push_back(event); }});
  PSD_REQUIRE_OK(steps);
  PSD_REQUIRE_OK((*steps)->join({Rank{0}, 2}));
  uint32_t passes = 0;
  PSD_REQUIRE_OK((*steps)->forward(images(), [&passes](const auto& outputs) {
    passes++;
    return Result<LossResult>(LossResult{0, outputs});
  }));
  const Status ended = (*steps)->step(Step{1}, kSamples).status();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == ErrorCode::deadlineExceeded);
  CHECK_THAT(ended.message(), Catch::Matchers::Contains("without ranks 1") &&
                                  Catch::Matchers::Contains("no attempt has succeeded for 2.5 s"));
  CHECK(passes > 2);
  REQUIRE(events.size() == 1);
  CHECK(events.front().what == ClientEvent::What::waits);
  CHECK_THAT(events.front().line, Catch::Matchers::Contains("trying again for up to"));
}

TEST_CASE("With a timeout of 0, a trainer tries once to reach the executor, and once to join") {
  const std::chrono::milliseconds once(0);
  TempDir folder;
  const std::string daemon = "unix://" + folder.file("daemon.sock");
  LocalExecutor executor(daemon, {{"connect_timeout_ms", 1}});
  auto steps = RemoteSteps::connect({.executor = executor.address(), .connectTimeout = once});
  PSD_REQUIRE_OK(steps);
  const auto joined = (*steps)->join({Rank{0}, 1});
  REQUIRE_FALSE(joined.ok());  // there is no daemon
  CHECK(joined.message().find("did not admit") == std::string::npos);

  const auto absent =
      RemoteSteps::connect({.executor = "unix://" + folder.file("absent.sock"), .connectTimeout = once});
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().code == ErrorCode::unavailable);
  CHECK(absent.message().find("in time") == std::string::npos);
}

TEST_CASE("The model is where its newest move has taken it, in whatever order the moves are reported") {
  const std::vector<std::string> first{"tcp://a:1", "tcp://b:1"}, second{"tcp://c:1"}, third{"tcp://d:1"};
  ModelLocation places(first);
  CHECK(places.servers() == first);
  places.moved({"tcp://b:1", "tcp://a:1"}, second);  // one that has tried the standby first
  CHECK(places.servers() == second);
  places.moved(first, second);
  CHECK(places.servers() == second);
  places.moved(second, third);
  places.moved(first, second);
  CHECK(places.servers() == third);
  places.moved(third, first);
  CHECK(places.servers() == first);
}

}  // namespace
}  // namespace psd::executor_faults_test
