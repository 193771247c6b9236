// The same training by messages over TCP and over a Unix socket and with mapped parameters: the same bits.

#include <cstring>
#include <limits>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/client.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

struct Way {
  const char* name;
  bool unixSocket;
  Transport transport;
};

constexpr Way kWays[] = {
    {"rpc over TCP", false, Transport::rpc},
    {"rpc over Unix", true, Transport::rpc},
    {"auto over TCP", false, Transport::automatic},
    {"auto over Unix", true, Transport::automatic},
};

Json configOf(const std::string& policy, uint32_t shards) {
  return {{"policy", {{"type", policy}}},
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
  options.chunkBytes = 64 << 10;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

Result<JoinInfo> joinBy(Client& client, const ModelSpec& model, const std::vector<float>& initial) {
  return client.join({Rank{0}, 1}, model, [&] { return std::span<const float>(initial); });
}

/// What a daemon of its own holds after three pushes; checks on the way what is pulled and mapped.
std::vector<float> train(const std::string& policy, uint32_t shards, const ModelSpec& model, const Way& way) {
  testing::LocalServer server(configOf(policy, shards));
  auto client = connectBy(server, way);
  const auto initial = valuesOf(model, 1);
  auto info = joinBy(*client, model, initial);
  PSD_REQUIRE_OK(info);
  const bool mapped = way.unixSocket && way.transport != Transport::rpc && policy == "hogwild";
  CHECK(info->transport == (mapped ? "shm" : "rpc"));
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
  PSD_REQUIRE_OK(client->leave());
  return values;
}

}  // namespace

TEST_CASE("transport: every way gives the same bits") {
  for (const std::string policy : {"hogwild", "locked"}) {
    for (uint32_t shards : {1u, 3u}) {
      // Below a slice; off its multiples; enough for stores past the caches.
      for (uint64_t elements : {5ull, 100'003ull, 1'500'007ull}) {
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
  CHECK(info->transport == "shm");
  CHECK(sameBits(reader->view(), initial));
}

TEST_CASE("transport: shm fails in one line that says why when there is none") {
  struct Case {
    const char* policy;
    bool unixSocket;
    const char* why;
  };
  for (const Case& each : {Case{"hogwild", false, "no Unix socket"}, Case{"locked", true, "policy locked"}}) {
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

}  // namespace psd
