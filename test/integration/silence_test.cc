// When a trainer considers its daemon unresponsive, and when not.

#include <span>
#include <string>
#include <vector>

#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include "common/types/model_layout.h"
#include "schema/psd.capnp.h"
#include "test/fault/fault_proxy.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::silence_test {
namespace {

using testing::FaultProxy;
using testing::LocalServer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLeaseMs = 1000;

ModelSpec small() { return {"small", {{"w", DType::f32, {100}}}}; }

ModelSpec large() { return {"large", {{"w", DType::f32, {3u << 19}}}}; }  // 6 MiB

TEST_CASE("Silence: a network that takes longer than a lease for what is under way is none") {
  const LocalServer server(Json{{"membership", {{"lease_ms", kLeaseMs}, {"grace_ms", 0}}}});
  FaultProxy proxy(server.address());
  ClientOptions options;
  options.servers = {proxy.address()};
  const auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const std::vector<float> ones(ModelLayout(large()).totalElements(), 1.f);
  std::vector<float> values(ones.size());
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, large(), [&] { return std::span<const float>(ones); }));
  // The answer to a heartbeat arrives after four slices of 1 MiB: 1.9 leases.
  proxy.slowDown(16u << 10, std::chrono::milliseconds(kLeaseMs * 3 / 400));
  PSD_REQUIRE_OK((*client)->pull(values).wait());
  CHECK(values == ones);
  PSD_REQUIRE_OK((*client)->leave());
  CHECK(server.status()["trainers_lost"] == 0);
}

/// A client behind the proxy, and the notices that it received.
struct Connected {
  explicit Connected(const FaultProxy& proxy, std::chrono::milliseconds silence) {
    ClientOptions options;
    options.servers = {proxy.address()};
    options.silence = silence;
    options.onEvent = [this](const ClientEvent& event) {
      lines.push_back(event.line);
      if (interrupts) client->interrupt();
    };
    auto connected = Client::connect(options);
    PSD_REQUIRE_OK(connected);
    client = std::move(*connected);
  }
  Result<JoinInfo> join() {
    return client->join({Rank{0}, 1}, small(), [&] { return std::span<const float>(values); });
  }

  std::vector<float> values = std::vector<float>(ModelLayout(small()).totalElements());
  bool interrupts = false;  ///< on each notice
  std::vector<std::string> lines;
  std::unique_ptr<Client> client;
};

void checkSilent(const Status& status, const FaultProxy& proxy) {
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::unavailable);
  CHECK(status.message() == "the daemon at " + proxy.address() + " does not answer");
}

TEST_CASE("Silence: of the daemon ends every wait of who has no lease") {
  constexpr std::chrono::milliseconds kSilence{1000};
  const LocalServer server(Json::object());
  {
    FaultProxy proxy(server.address());
    Connected trainer(proxy, kSilence);
    proxy.stopRelaying();
    checkSilent(trainer.join().status(), proxy);
  }
  {
    FaultProxy proxy(server.address());
    Connected trainer(proxy, kSilence);
    PSD_REQUIRE_OK(trainer.join());
    Connected reader(proxy, kSilence), late(proxy, kSilence);
    PSD_REQUIRE_OK(reader.client->observe(small()));
    proxy.stopRelaying();
    checkSilent(reader.client->pull(reader.values).wait().status(), proxy);
    checkSilent(late.client->observe(small()).status(), proxy);
    checkSilent(late.client->ping(1, 1).status(), proxy);
  }
}

bool isLeave(std::span<const std::byte> message) {
  constexpr uint16_t kLeave = 4;  // of schema::Trainer
  const auto* words = reinterpret_cast<const capnp::word*>(message.data());
  capnp::FlatArrayMessageReader reader(kj::arrayPtr(words, message.size() / sizeof(capnp::word)));
  const auto root = reader.getRoot<capnp::rpc::Message>();
  return root.isCall() && root.getCall().getInterfaceId() == capnp::typeId<schema::Trainer>() &&
         root.getCall().getMethodId() == kLeave;
}

TEST_CASE("Silence: a goodbye that takes long is none") {
  constexpr std::chrono::milliseconds kSilence{2000};
  const LocalServer server(Json{{"membership", {{"lease_ms", kSilence.count()}, {"grace_ms", 0}}}});
  FaultProxy proxy(server.address());
  proxy.holdBack(isLeave, 26);  // two messages per heartbeat, four heartbeats in kSilence: 6.5 s
  Connected trainer(proxy, kSilence);
  PSD_REQUIRE_OK(trainer.join());
  PSD_REQUIRE_OK(trainer.client->leave());
  CHECK(trainer.lines.empty());
  const Json status = server.status();
  CHECK(status["trainers"].empty());
  CHECK(status["trainers_lost"] == 0);
}

TEST_CASE("Silence: an unresponsive server delays the use of the next one only briefly") {
  const LocalServer server(Json::object());
  const auto silent = listenOn(parseAddress("tcp://127.0.0.1:0").value());  // never accepts
  PSD_REQUIRE_OK(silent);
  ClientOptions options;
  options.servers = {silent->address().toString(), server.address()};
  options.connectTimeout = std::chrono::hours(24);
  PSD_REQUIRE_OK(Client::connect(options));
}

TEST_CASE("Silence: a trainer that waits long for its admission is notified") {
  const LocalServer server(Json::object());
  for (const bool joins : {true, false}) {
    FaultProxy proxy(server.address());
    Connected waiting(proxy, std::chrono::hours(1));
    waiting.interrupts = true;
    proxy.stopRelaying();
    const auto in = joins ? waiting.join() : waiting.client->observe(small());
    REQUIRE_FALSE(in.ok());
    CHECK(in.error().code == ErrorCode::interrupted);
    REQUIRE(waiting.lines.size() == 1);
    CHECK(waiting.lines[0].find("waiting for the daemon's answer") == 0);
  }
}

}  // namespace
}  // namespace psd::silence_test
