// Several threads that share a Client.

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "test/fault/fault_proxy.h"
#include "test/support/catch.h"
#include "test/support/local_servers.h"
#include "trainer/client/api/client.h"

namespace psd::client_threads_test {
namespace {

using testing::FaultProxy;
using testing::LocalServer;
using testing::LocalServers;
using Json = nlohmann::ordered_json;
using Values = std::vector<float>;

constexpr size_t kThreads = 4;
constexpr uint64_t kPushes = 50;  // of each thread
const ModelSpec kModel{"net", {{"w", DType::f32, {40, 16}}, {"b", DType::f32, {16}}}};
const Values kInitial(ModelLayout(kModel).totalElements());
const Values kGradient(kInitial.size(), -1.f);

Json configOf(const char* policy) {
  return {{"policy", {{"type", policy}}}, {"shards", 2}, {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}}};
}

ClientOptions optionsFor(const std::string& address) {
  ClientOptions options;
  options.servers = {address};
  return options;
}

std::unique_ptr<Client> clientOf(const ClientOptions& options, uint32_t rank = 0, uint32_t worldSize = 1) {
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{rank}, worldSize}, kModel, [] { return std::span(kInitial); }));
  return std::move(*client);
}

Values pulled(Client& client) {
  Values values(kInitial.size());
  PSD_REQUIRE_OK(client.pull(values).wait());
  return values;
}

/// Each thread pushes and pulls in turn. `before` is called before each push, with its number. Steps
/// rise with each push.
void train(Client& client, const std::function<void(uint64_t)>& before = nullptr) {
  std::mutex mutex;  // of the steps: a push begins with the next one
  uint64_t step = 0;
  std::atomic<uint64_t> failures{0};
  const auto work = [&] {
    Values values(kInitial.size());
    for (uint64_t i = 0; i < kPushes; i++) {
      std::unique_lock lock(mutex);
      if (before) before(step);
      auto push = client.push(Step{++step}, kGradient, 1, {});
      lock.unlock();
      const bool ok = client.pull(values).wait().ok() && push.wait().ok();
      if (!ok) failures++;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; i++) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
}

TEST_CASE("Client: several threads push and pull, at one daemon or several") {
  for (const size_t daemons : {1, 2}) {
    for (const uint32_t connections : {1u, 2u}) {
      INFO(daemons << " daemons, " << connections << " connections");
      const LocalServers servers(configOf("locked"), daemons);
      ClientOptions options = optionsFor(servers.lead().address());
      options.connections = connections;
      if (connections > 1) options.transport = Transport::rpc;
      const auto client = clientOf(options);
      train(*client);
      CHECK(pulled(*client) == Values(kInitial.size(), kThreads * kPushes));
      PSD_REQUIRE_OK(client->leave());
    }
  }
}

TEST_CASE("Client: threads share a reconnect, and each of their pushes counts once") {
  const LocalServer server(configOf("locked"));
  FaultProxy proxy(server.address());
  ClientOptions options = optionsFor(proxy.address());
  options.retryTimeout = std::chrono::minutes(1);
  std::atomic<size_t> broken{0};
  options.onEvent = [&](const ClientEvent& event) { broken += event.what == ClientEvent::What::broke; };
  const auto client = clientOf(options);
  size_t connection = 0;
  train(*client, [&](uint64_t step) {
    if (step % 40 == 20) proxy.cut(connection++);
  });
  CHECK(pulled(*client) == Values(kInitial.size(), kThreads * kPushes));
  CHECK(broken >= connection);
}

TEST_CASE("Client: a thread that waits for other trainers leaves the client to other threads") {
  const LocalServer server(configOf("sync"));
  const auto client = clientOf(optionsFor(server.address()), 0, 2),
             other = clientOf(optionsFor(server.address()), 1, 2);
  auto push = client->push(Step{1}, kGradient, 1, {});
  auto waits = std::async(std::launch::async, [&] { return push.wait(); });
  server.statusWhen([](const Json& status) { return status["trainers"][0]["waits_for"] != ""; });
  PSD_REQUIRE_OK(client->ping(1, 1));
  CHECK(pulled(*client) == kInitial);
  PSD_REQUIRE_OK(other->push(Step{1}, kGradient, 1, {}).wait());
  PSD_REQUIRE_OK(waits.get());
}

TEST_CASE("Client: a wait that is ended leaves its call in progress") {
  const LocalServer server(configOf("sync"));
  ClientOptions options = optionsFor(server.address());
  std::atomic<bool> keepWaiting{true};
  options.keepWaiting = [&] { return keepWaiting.load(); };
  const auto client = clientOf(options, 0, 2), other = clientOf(optionsFor(server.address()), 1, 2);
  keepWaiting = false;
  auto push = client->push(Step{1}, kGradient, 1, {});
  const auto ended = push.wait();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == ErrorCode::interrupted);
  CHECK_FALSE(push.finished());
  keepWaiting = true;
  PSD_REQUIRE_OK(other->push(Step{1}, kGradient, 1, {}).wait());
  CHECK(pulled(*client) == Values(kInitial.size(), 1.f));  // the mean of both
  PSD_REQUIRE_OK(push.wait());
}

TEST_CASE("Client: a join whose wait is ended can be repeated") {
  const LocalServer server(configOf("locked"));
  auto first = Client::connect(optionsFor(server.address()));
  PSD_REQUIRE_OK(first);
  std::promise<void> asked, go;
  auto initializes = std::async(std::launch::async, [&] {
    return (*first)->join({Rank{0}, 2}, kModel, [&] {
      asked.set_value();
      go.get_future().wait();
      return std::span(kInitial);
    });
  });
  asked.get_future().wait();
  ClientOptions options = optionsFor(server.address());
  options.retryTimeout = std::chrono::minutes(1);
  std::atomic<bool> keepWaiting{true};
  options.keepWaiting = [&] { return keepWaiting.load(); };
  auto second = Client::connect(options);
  PSD_REQUIRE_OK(second);
  const auto join = [&] { return (*second)->join({Rank{1}, 2}, kModel, [] { return std::span(kInitial); }); };
  keepWaiting = false;
  CHECK(join().error().code == ErrorCode::interrupted);  // it waits for the initial values
  keepWaiting = true;
  go.set_value();
  PSD_REQUIRE_OK(initializes.get());
  PSD_REQUIRE_OK(join());
  CHECK(pulled(**second) == kInitial);
}

TEST_CASE("Client: its end is an error of calls in progress, also of those that other threads wait for") {
  const LocalServer server(configOf("sync"));
  auto client = clientOf(optionsFor(server.address()), 0, 2);
  const auto other = clientOf(optionsFor(server.address()), 1, 2);
  auto push = client->push(Step{1}, kGradient, 1, {});
  auto partial = client->beginPush(Step{2}, kGradient, 1, {});
  partial->ready(0, 16);
  SECTION("no thread waits") {}
  SECTION("a thread waits") {
    auto pending = client->push(Step{3}, kGradient, 1, {});
    auto waits = std::async(std::launch::async, [&] { return pending.wait(); });
    server.statusWhen([](const Json& status) { return status["trainers"][0]["waits_for"] != ""; });
    client.reset();
    CHECK(waits.get().error().code == ErrorCode::interrupted);
  }
  client.reset();
  CHECK(push.finished());
  CHECK(push.wait().error().code == ErrorCode::interrupted);
  partial->ready(16, 16);
  CHECK(partial->finish().wait().error().code == ErrorCode::interrupted);
}

TEST_CASE("Client: a call from within a callback of its own fails") {
  const LocalServer server(configOf("locked"));
  auto client = Client::connect(optionsFor(server.address()));
  PSD_REQUIRE_OK(client);
  Status called;
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, kModel, [&] {
    called = (*client)->ping(1, 1).status();
    return std::span(kInitial);
  }));
  REQUIRE_FALSE(called.ok());
  CHECK(called.error().code == ErrorCode::invalidArgument);
  PSD_REQUIRE_OK((*client)->ping(1, 1));
}

}  // namespace
}  // namespace psd::client_threads_test
