// A device that fails for good: what is asked of it is answered with the error, and nobody waits for ever.

#include <chrono>
#include <future>
#include <vector>

#include "server/store/backend.h"
#include "test/cuda/emulated/device.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/client.h"

namespace psd {
namespace {

using Catch::Matchers::Contains;

constexpr int kFirst = 0, kSecond = 1;  // a device fails once
constexpr std::chrono::minutes kPatience{1};

TEST_CASE("operations on a device that fails end with its error, those that are queued too") {
  constexpr uint64_t kElements = 100'000;
  constexpr int kOperations = 40;
  const auto device = makeCudaBackend(kFirst);
  PSD_REQUIRE_OK(device);
  const auto shards = (*device)->allocate(std::vector<uint64_t>{kElements}, Optimizer{});
  PSD_REQUIRE_OK(shards);
  ShardStorage& storage = *shards->front();
  const std::vector<float> gradient(kElements, 1.f);
  std::vector<std::promise<Status>> ends(2 * kOperations);
  const auto lane = (*device)->makeLane();  // goes first, and waits for the callbacks
  for (int i = 0; i < kOperations; i++) {
    if (i == kOperations / 2) emulated::failDevice(kFirst);
    storage.apply(*lane, 0, gradient, {1, 1.0}, [&, i](Status status) { ends[2 * i].set_value(status); });
    storage.read(*lane, 0, kElements,
                 [&, i](Result<ReadView> view) { ends[2 * i + 1].set_value(view.status()); });
  }
  for (int i = 0; i < 2 * kOperations; i++) {
    auto end = ends[i].get_future();
    REQUIRE(end.wait_for(kPatience) == std::future_status::ready);
    const Status status = end.get();
    if (i >= kOperations) REQUIRE_FALSE(status.ok());
    if (!status.ok()) CHECK_THAT(status.message(), Contains("cuda:0: ") && Contains("launch failure"));
  }
  const auto more = (*device)->allocate(std::vector<uint64_t>{kElements}, Optimizer{});
  REQUIRE_FALSE(more.ok());
  CHECK_THAT(more.message(), Contains("cuda:0: ") && Contains("launch failure"));
}

TEST_CASE("a daemon whose device fails tells its trainers, and goes on answering") {
  const auto device = makeCudaBackend(kSecond);
  PSD_REQUIRE_OK(device);
  const ModelSpec model{"net", {{"w", DType::f32, {10'000}}}};
  testing::LocalServer server({{"policy", {{"type", "locked"}}}, {"shards", 2}}, *device);
  ClientOptions options;
  options.servers = {server.address()};
  options.retryTimeout = std::chrono::seconds(1);
  const auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  std::vector<float> values(10'000);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, model, [&] { return std::span<const float>(values); }));
  const std::vector<float> gradient(10'000, 1.f);
  PSD_REQUIRE_OK((*client)->push(Step{1}, gradient, 1, {}).wait());

  emulated::failDevice(kSecond);
  const auto pushed = (*client)->push(Step{2}, gradient, 1, {}).wait();
  REQUIRE_FALSE(pushed.ok());
  CHECK_THAT(pushed.message(), Contains("cuda:1: "));
  const auto pulled = (*client)->pull(values).wait();
  REQUIRE_FALSE(pulled.ok());
  CHECK_THAT(pulled.message(), Contains("cuda:1: "));
  CHECK(server.status()["trainers"][0]["rank"] == 0);
}

}  // namespace
}  // namespace psd
