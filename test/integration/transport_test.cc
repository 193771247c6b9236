// The same training by messages over TCP and over a Unix socket, over several connections, and with mapped
// parameters and a ring for gradients: the results are bit-identical.

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::transport_test {
namespace {

using Json = nlohmann::ordered_json;

struct Way {
  const char* name;
  bool unixSocket;
  Transport transport;
  uint32_t connections = 1;
  uint32_t spinUs = 0;  // of both ends
};

constexpr Way kWays[] = {
    {"rpc over TCP", false, Transport::rpc},
    {"rpc over Unix", true, Transport::rpc},
    {"auto over TCP", false, Transport::automatic},
    {"auto over Unix", true, Transport::automatic},
    {"awake over TCP", false, Transport::automatic, 1, 100},
    {"awake over Unix", true, Transport::automatic, 1, 100},
    {"two connections over TCP", false, Transport::automatic, 2},
    {"four connections over TCP", false, Transport::rpc, 4},
    {"four connections over Unix", true, Transport::rpc, 4},
    {"four connections and shared memory", true, Transport::automatic, 4},
};

Json configOf(const std::string& policy, uint32_t shards, uint32_t spinUs = 0) {
  return {{"policy", {{"type", policy}}},
          {"spin_us", spinUs},
          {"shards", shards},
          {"threads", 2},
          {"optimizer", {{"type", "adam"}, {"lr", 0.1}}}};
}

ModelSpec modelOf(uint64_t elements) {
  return {"test", {{"w", DType::f32, {elements}}, {"b", DType::f32, {3}}}};
}

std::vector<float> valuesOf(const ModelSpec& model, uint64_t salt) {
  const ModelLayout layout(model);
  std::vector<float> values(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) {
      values[i] = static_cast<float>((i * 2'654'435'761u + salt * 97) % 1000) / 7.0f - 70.0f;
    }
  }
  return values;
}

bool sameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::unique_ptr<Client> connectBy(const testing::LocalServer& server, const Way& way) {
  ClientOptions options;
  options.servers.push_back(way.unixSocket ? server.unixAddress() : server.address());
  options.transport = way.transport;
  options.connections = way.connections;
  options.spin = std::chrono::microseconds(way.spinUs);
  options.chunkBytes = 64 << 10;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

Result<JoinInfo> joinBy(Client& client, const ModelSpec& model, const std::vector<float>& initial) {
  return client.join({Rank{0}, 1}, model, [&] { return std::span<const float>(initial); });
}

/// The parameters of a fresh daemon after three pushes; also checks what is pulled and mapped.
std::vector<float> train(const std::string& policy, uint32_t shards, const ModelSpec& model, const Way& way) {
  testing::LocalServer server(configOf(policy, shards, way.spinUs));
  auto client = connectBy(server, way);
  const auto initial = valuesOf(model, 1);
  auto info = joinBy(*client, model, initial);
  PSD_REQUIRE_OK(info);
  const bool mapped = way.unixSocket && way.transport != Transport::rpc && policy == "hogwild";
  CHECK(info->pullTransport == (mapped ? "shm" : "rpc"));
  const bool ring = way.unixSocket && way.transport != Transport::rpc;
  CHECK(info->pushTransport == (ring ? "shm" : "rpc"));
  CHECK(info->connections == (ring ? 1 : std::min(way.connections, info->shardCount)));
  CHECK(client->view().size() == (mapped ? initial.size() : 0));
  std::vector<float> values(initial.size());
  for (uint64_t step = 0; step <= 3; step++) {
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    auto pull = client->pull(values).wait();
    PSD_REQUIRE_OK(pull);
    CHECK(pull->versions == std::vector<Version>(info->shardCount, Version{step}));
    if (step == 0) CHECK(sameBits(values, initial));
    if (mapped) CHECK(sameBits(client->view(), values));
    if (step == 3) break;
    const auto gradient = valuesOf(model, 10 + step);
    PSD_REQUIRE_OK(client->push(Step{step + 1}, gradient, 1, pull->versions).wait());
  }
  const Json status = server.status();
  CHECK(status["counters"]["push_bytes"] == 3 * initial.size() * sizeof(float));
  CHECK(status["trainers"][0]["pushed_bytes"] == client->bytesPushed());
  CHECK(status["trainers"][0]["pulled_bytes"] == (mapped ? 0 : client->bytesPulled()));
  CHECK(status["trainers"][0]["connections"] == info->connections);
  CHECK((status["ring_bytes"] != 0) == ring);
  PSD_REQUIRE_OK(client->leave());
  return values;
}

}  // namespace

TEST_CASE("transport: every way gives the same bits") {
  for (const std::string policy : {"hogwild", "locked"}) {
    for (uint32_t shards : {1u, 3u}) {
      // Below a slice; not a multiple of it; enough for streaming stores, and to be copied in two pieces.
      for (uint64_t elements : {5ull, 100'003ull, 2'200'007ull}) {
        const ModelSpec model = modelOf(elements);
        const auto expected = train(policy, shards, model, kWays[0]);
        for (const Way& way : kWays) {
          INFO(policy << ", " << shards << " shards, " << elements << " elements, " << way.name);
          CHECK(sameBits(train(policy, shards, model, way), expected));
        }
      }
    }
  }
}

TEST_CASE("transport: a reader maps the parameters too") {
  const ModelSpec model = modelOf(1000);
  testing::LocalServer server(configOf("hogwild", 2));
  auto trainer = connectBy(server, kWays[0]);
  const auto initial = valuesOf(model, 1);
  PSD_REQUIRE_OK(joinBy(*trainer, model, initial));
  auto reader = connectBy(server, {"shm", true, Transport::shm});
  auto info = reader->observe(model);
  PSD_REQUIRE_OK(info);
  CHECK(info->pullTransport == "shm");
  CHECK(sameBits(reader->view(), initial));
}

TEST_CASE("transport: a ring with fewer places than the window, and none where none is available") {
  const ModelSpec model = modelOf(100'003);
  struct Case {
    uint64_t ringBytes;
    const char* pushes;
  };
  // Slices are 64 KiB at most; the window is 4.
  for (const Case& each : {Case{100 << 10, "shm"}, Case{1 << 10, "rpc"}, Case{0, "rpc"}}) {
    INFO(each.ringBytes);
    Json config = configOf("hogwild", 2);
    config["limits"]["ring_bytes"] = each.ringBytes;
    config["limits"]["all_rings_bytes"] = each.ringBytes;
    testing::LocalServer server(config);
    auto client = connectBy(server, {"auto", true, Transport::automatic});
    const auto initial = valuesOf(model, 1);
    auto info = client->join({Rank{0}, 2}, model, [&] { return std::span<const float>(initial); });
    PSD_REQUIRE_OK(info);
    CHECK(info->pushTransport == each.pushes);
    const auto one = valuesOf(model, 2), two = valuesOf(model, 3);
    auto first = client->push(Step{1}, one, 1, {}), second = client->push(Step{2}, two, 1, {});
    PSD_REQUIRE_OK(first.wait());
    PSD_REQUIRE_OK(second.wait());
    std::vector<float> values(initial.size());
    auto pull = client->pull(values).wait();
    PSD_REQUIRE_OK(pull);
    CHECK(pull->versions == std::vector<Version>(2, Version{2}));

    auto other = connectBy(server, {"shm", true, Transport::shm});
    auto refused = other->join({Rank{1}, 2}, model, nullptr);
    REQUIRE(!refused.ok());
    INFO(refused.message());
    CHECK(refused.message().find("transport shm") == 0);
    CHECK(refused.message().find("ring") != std::string::npos);
  }
}

TEST_CASE("transport: shm fails in one line that says why when there is none") {
  struct Case {
    const char* policy;
    bool unixSocket;
    const char* why;
  };
  for (const Case& each :
       {Case{"hogwild", false, "not a Unix socket"}, Case{"locked", true, "policy locked"}}) {
    INFO(each.policy);
    testing::LocalServer server(configOf(each.policy, 2));
    auto client = connectBy(server, {"shm", each.unixSocket, Transport::shm});
    const ModelSpec model = modelOf(100);
    auto info = joinBy(*client, model, valuesOf(model, 1));
    REQUIRE(!info.ok());
    CHECK(info.error().code == ErrorCode::invalidArgument);
    CHECK(info.message().find("transport shm") == 0);
    CHECK(info.message().find(each.why) != std::string::npos);
    CHECK(info.message().find('\n') == std::string::npos);
  }
}

TEST_CASE("transport: the daemon's end shows in a pull that needs no call, and the map outlives it") {
  const ModelSpec model = modelOf(100);
  auto server = std::make_unique<testing::LocalServer>(configOf("hogwild", 2));
  auto client = connectBy(*server, {"shm", true, Transport::shm});
  const auto initial = valuesOf(model, 1);
  PSD_REQUIRE_OK(joinBy(*client, model, initial));
  server.reset();
  std::vector<float> values(initial.size());
  auto pull = client->pull(values).wait();
  REQUIRE(!pull.ok());
  CHECK((pull.error().code == ErrorCode::shuttingDown || pull.error().code == ErrorCode::unavailable));
  CHECK(sameBits(client->view(), initial));
}

TEST_CASE("Transport: a large gradient travels in large slices only where they are applied as they arrive") {
  struct Case {
    const char* policy;
    bool logs, large;
  };
  const auto [policy, logs, large] =
      GENERATE(Case{"hogwild", false, true}, Case{"hogwild", true, false}, Case{"locked", false, false});
  CAPTURE(policy, logs);
  const testing::TempDir folder;
  Json config = configOf(policy, 1);
  config["optimizer"] = {{"type", "sgd"}, {"lr", 1.0}};
  if (logs) config["durability"] = {{"type", "log"}, {"path", folder.file("saved")}};
  testing::LocalServer server(config);
  ClientOptions options;
  options.servers.push_back(server.unixAddress());
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const ModelSpec model = modelOf(uint64_t{8} << 20);  // 32 MiB, and a little more
  const std::vector<float> initial(ModelLayout(model).totalElements(), 1.f);
  auto info = joinBy(**client, model, initial);
  PSD_REQUIRE_OK(info);
  CHECK(info->pushTransport == "shm");
  const std::vector<float> gradient(initial.size(), 0.25f);
  PSD_REQUIRE_OK((*client)->push(Step{1}, gradient, 1, {Version{0}}).wait());
  CHECK(server.status()["counters"]["push_slices"] == (large ? 17 : 33));
  std::vector<float> values(initial.size());
  PSD_REQUIRE_OK((*client)->pull(values).wait());
  CHECK(std::ranges::all_of(values, [](float value) { return value == 0.75f || value == 1.f; }));
  CHECK(values[0] == 0.75f);
}

}  // namespace psd::transport_test
