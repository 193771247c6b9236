// What a trainer takes for silence of its daemon, and what not.

#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/fault/fault_proxy.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/client.h"

namespace psd {
namespace {

using testing::FaultProxy;
using testing::LocalServer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLeaseMs = 1000;

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
  // The answer to a beat comes behind four slices of 1 MiB: 1.9 leases.
  proxy.slowDown(16u << 10, std::chrono::milliseconds(kLeaseMs * 3 / 400));
  PSD_REQUIRE_OK((*client)->pull(values).wait());
  CHECK(values == ones);
  PSD_REQUIRE_OK((*client)->leave());
  CHECK(server.status()["trainers_lost"] == 0);
}

}  // namespace
}  // namespace psd
