// A device that fails permanently: every call returns the error, and no caller waits forever.

#include <chrono>
#include <future>
#include <vector>

#include "server/store/parameter_store.h"
#include "test/cuda/emulated/device.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::failing_device_test {
namespace {

using Catch::Matchers::Contains;

constexpr int kFirst = 0, kSecond = 1;  // a device fails only once
constexpr std::chrono::minutes kPatience{1};

TEST_CASE("rows that a full device has no memory for are refused whole, and leave nothing behind") {
  constexpr size_t kKept = size_t{256} << 20, kChunk = size_t{8} << 20;
  const auto device = makeCudaBackend(kFirst);
  PSD_REQUIRE_OK(device);
  const ModelSpec model{"m", {}, {{"a", 4, {}}, {"b", 4, {}}}};
  const auto store = ParameterStore::create(model, 1, {*device}, {{}, {Optimizer{}}, {0, 0}});
  PSD_REQUIRE_OK(store);
  RowShard& shard = (*store)->rowShard(0);
  const std::vector<RowRun> runs = {{0, 2}, {1, 2}};
  const std::vector<uint64_t> ids = {1, 2, 1, 2};
  const std::vector<float> gradients(16, 1.f);
  const auto update = [&] {
    return shard.update({{runs, ids}, gradients, nullptr}, {}, shard.scalars(shard.beginExclusiveUpdate()));
  };
  emulated::leaveFree(kFirst, kKept + kChunk + kChunk / 2);  // for the rows of one table
  const Status full = update();
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code == ErrorCode::overloaded);
  CHECK_THAT(full.message(), Contains("cuda:0: cannot hold 8388608 bytes") && Contains("are reserved"));
  CHECK(shard.size().rows == 0);
  CHECK(shard.size().bytes == 0);
  emulated::leaveFree(kFirst, size_t{1} << 30);
  PSD_REQUIRE_OK(update());
  CHECK(shard.size().rows == 4);
}

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
  auto rows = (*device)->makeRowStorage(4, Optimizer{});
  PSD_REQUIRE_OK(rows);
  RowTable table({}, *std::move(rows), std::make_shared<Epochs>());
  const std::vector<uint64_t> ids = {1, 2, 3}, more = {4};
  PSD_REQUIRE_OK(table.insertMissing(ids, Version{1}));
  PSD_REQUIRE_OK(table.state());
  const auto lane = (*device)->makeLane();  // destroyed first; it waits for the callbacks
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
  const auto another = (*device)->allocate(std::vector<uint64_t>{kElements}, Optimizer{});
  REQUIRE_FALSE(another.ok());
  CHECK_THAT(another.message(), Contains("cuda:0: ") && Contains("launch failure"));
  std::vector<float> values(ids.size() * 4);
  table.gather(ids, values);
  CHECK_THAT(table.state().message(), Contains("cuda:0: ") && Contains("launch failure"));
  CHECK_THAT(table.insertMissing(more, Version{2}).message(), Contains("cuda:0: "));
  CHECK(table.size().rows == ids.size());
}

TEST_CASE("a daemon whose device fails reports it to its trainers, and continues to answer") {
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
}  // namespace psd::failing_device_test
