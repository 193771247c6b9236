#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "test/support/async_backend.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::rounds_checkpoint_test {
namespace {

using namespace testing;

constexpr uint32_t kShards = 3;

DEVICE_TEST("a checkpoint holds all shards as they were between two rounds, however many come meanwhile") {
  MemoryEnv env;
  TestLoop loop;
  const auto store =
      std::shared_ptr<ParameterStore>(makeStore(kShards, kCounting, kSmallModel, device.make()));
  const auto together = std::make_shared<ShardLock>();
  CheckpointSource source = lockedSource(store);
  source.groups = [together] { return std::vector<CheckpointSource::Group>{{"sync", false, together}}; };
  const auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  Checkpointer checkpointer(env, logConfig(), source, 1);
  uint64_t round = 0;
  for (uint64_t number = 1; number <= 20; number++) {
    auto taking = std::async(std::launch::async, [&] { return checkpointer.takeNow(); });
    while (taking.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      const ShardLock::Guard guard = loop.wait(together->acquire());
      round++;
      pushRound(*store, Step{round});
    }
    PSD_REQUIRE_OK(taking.get());
    const auto manifest = readManifest(env, checkpointPath("/data", number));
    PSD_REQUIRE_OK(manifest);
    CHECK(manifest->consistency == Consistency::perGroup);
    for (const ManifestShard& shard : manifest->shards) {
      REQUIRE(shard.version == manifest->shards[0].version);
      REQUIRE(shard.pushed.ranges().front().pushes == manifest->shards[0].pushed.ranges().front().pushes);
    }
  }
  CHECK(round > 0);
}

TEST_CASE("a checkpoint during which a policy was replaced is restarted") {
  MemoryEnv env;
  const auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  const auto before = std::make_shared<ShardLock>(), after = std::make_shared<ShardLock>();
  CheckpointSource source = lockedSource(makeStore(kShards, kCounting));
  source.groups = [&, looks = 0]() mutable {
    return std::vector<CheckpointSource::Group>{{"sync", false, looks++ == 0 ? before : after}};
  };
  PSD_REQUIRE_OK(Checkpointer(env, logConfig(), source, 1).takeNow());
  CHECK_FALSE(readManifest(env, checkpointPath("/data", 1)).ok());
  PSD_REQUIRE_OK(readManifest(env, checkpointPath("/data", 2)));
}

TEST_CASE("a request during a checkpoint gets one that starts after the request") {
  MemoryEnv env;
  const auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  std::promise<void> begun, mayEnd;
  CheckpointSource source = lockedSource(makeStore(kShards, kCounting));
  source.groups = [&, end = mayEnd.get_future().share(), looks = 0]() mutable {
    if (looks++ == 0) {
      begun.set_value();
      end.wait();
    }
    return std::vector<CheckpointSource::Group>{{"locked"}};
  };
  Checkpointer checkpointer(env, logConfig(), source, 1);
  auto first = std::async(std::launch::async, [&] { return checkpointer.takeNow(); });
  begun.get_future().wait();
  std::promise<void> asks;
  auto second = std::async(std::launch::async, [&] {
    asks.set_value();
    return checkpointer.takeNow();
  });
  asks.get_future().wait();
  mayEnd.set_value();
  PSD_REQUIRE_OK(first.get());
  PSD_REQUIRE_OK(second.get());
  CHECK(checkpointer.status().checkpoints == 2);
  PSD_REQUIRE_OK(readManifest(env, checkpointPath("/data", 2)));
}

TEST_CASE("the copies of a checkpoint take the space of the largest shards that are copied together") {
  // Tensors of alternating groups, each in its own shard: 3 small ones and a large one.
  const uint64_t kSmall = 64, kLarge = 4096;
  const ModelSpec model{"groups",
                        {{"a1", DType::f32, {kSmall}},
                         {"b1", DType::f32, {kSmall}},
                         {"a2", DType::f32, {kLarge}},
                         {"c1", DType::f32, {kSmall}},
                         {"c2", DType::f32, {kSmall}}}};
  auto made = ParameterStore::create(model, 1, {makeCpuBackend()},
                                     {{0, 1, 0, 2, 2}, std::vector(3, optimizerOf(kCounting))});
  PSD_REQUIRE_OK(made);
  const std::shared_ptr<ParameterStore> store = std::move(*made);
  REQUIRE(store->shardCount() == 4);  // c1 and c2 are adjacent
  const auto lock = std::make_shared<ShardLock>(), otherLock = std::make_shared<ShardLock>();
  const auto bytesOf = [&](const std::shared_ptr<ShardLock>& a, const std::shared_ptr<ShardLock>& c) {
    MemoryEnv env;
    const auto durability = Durability::open(env, logConfig());
    PSD_REQUIRE_OK(durability);
    CheckpointSource source = lockedSource(store);
    source.groups = [&] {
      return std::vector<CheckpointSource::Group>{{"a", false, a}, {"b"}, {"c", false, c}};
    };
    Checkpointer checkpointer(env, logConfig(), source, 1);
    PSD_REQUIRE_OK(checkpointer.takeNow());
    return checkpointer.status().checkpointCopyBytes / sizeof(float);
  };
  CHECK(bytesOf(nullptr, nullptr) == kLarge);
  CHECK(bytesOf(nullptr, lock) == kLarge);
  // From a1 over b1 to a2, and c's shard of 2 * kSmall takes the place of a1.
  CHECK(bytesOf(lock, nullptr) == 3 * kSmall + kLarge);
  CHECK(bytesOf(lock, otherLock) == 3 * kSmall + kLarge);
}

}  // namespace
}  // namespace psd::rounds_checkpoint_test
