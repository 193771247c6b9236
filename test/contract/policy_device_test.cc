// Promises of policies about device operations in flight.

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "test/contract/policy_trainer.h"

namespace psd::policy_device_test {
namespace {

using testing::AsyncBackend;
using testing::entryOf;
using testing::PolicyTrainer;
using testing::ServedStore;
using testing::subtracting;
using testing::TestDevice;
using testing::TestLoop;
using testing::Update;
using testing::wholeShard;

constexpr uint64_t kElements = 64;

TEST_CASE("a caller that drops an answer waits for the device before it releases lock and gradient") {
  const auto device = std::make_shared<AsyncBackend>();
  ServedStore served(device, entryOf("locked"), subtracting(), kElements, 1);
  TestLoop loop;
  PolicyTrainer trainer(served, loop);
  auto update = std::make_unique<Update>(served, trainer.lanes(), 0, Version{},
                                         std::vector<float>(kElements, -1.f), trainer.ref());
  device->gate().close();
  std::optional<kj::Promise<Result<PushAnswer>>> answer = update->send({0, kElements});
  REQUIRE_FALSE(loop.resolved(*answer));
  REQUIRE(device->gate().waitForHeld(1));
  bool early = false;
  std::thread other([&] {
    TestLoop own;
    auto lock = served.shard(0).lock().acquire();
    for (int i = 0; i < 2000 && !early; i++) early = own.resolved(lock);
    device->gate().open();
    own.wait(kj::mv(lock));
  });
  answer.reset();
  update.reset();
  other.join();
  CHECK_FALSE(early);
  CHECK(testing::allAre(trainer.pullAll(), 1));
}

DEVICE_TEST("shards of a step that is clipped as one are released one by one") {
  for (const char* policy : {"locked", "bounded_staleness"}) {
    ServedStore served(device.make(), entryOf(policy), subtracting(), kElements, 2,
                       R"({"clip": {"norm": 1000}})");
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    std::optional<ShardLock::Guard> first = loop.wait(served.shard(0).lock().acquire());
    auto push = trainer.startAll(Version{0}, std::vector<float>(kElements, -1.f));
    auto second = served.shard(1).lock().acquire();
    REQUIRE(loop.until([&] { return loop.resolved(second); }));  // though the first is still waited for
    loop.wait(kj::mv(second));
    CHECK_FALSE(loop.resolved(push));
    first.reset();
    CHECK(loop.wait(kj::mv(push))->applied());
    CHECK(testing::allAre(trainer.pullAll(), 1));
  }
}

TEST_CASE("delay compensation keeps nothing of a trainer that left while it pulled") {
  for (const char* policy : {"locked", "bounded_staleness"}) {
    const auto device = std::make_shared<AsyncBackend>();
    ServedStore served(device, entryOf(policy), subtracting(), kElements, 1,
                       R"({"delay_compensation": {"lambda": 0.5}})");
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    device->gate().close();
    {
      ShardPull state;
      state.trainer = trainer.ref();
      auto pull = served.policy->pull(served.shard(0), *trainer.lanes()[0], state, 0, kElements)
                      .eagerlyEvaluate(nullptr);
      REQUIRE_FALSE(loop.resolved(pull));
      REQUIRE(device->gate().waitForHeld(1));
      trainer.leave();
      device->gate().open();
      PSD_REQUIRE_OK(loop.wait(kj::mv(pull)));
    }
    CHECK(served.shard(0).lastSnapshot().expired());
  }
}

}  // namespace
}  // namespace psd::policy_device_test
