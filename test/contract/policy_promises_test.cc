// Promises of single policies beyond policy_contract_test.cc.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "test/contract/policy_trainer.h"

namespace psd::policy_promises_test {
namespace {

using testing::allAre;
using testing::Piece;
using testing::PolicyTrainer;
using testing::Pulled;
using testing::Random;
using testing::randomPieces;
using testing::runOnThreads;
using testing::ServedStore;
using testing::subtracting;
using testing::TestDevice;
using testing::TestLoop;
using testing::Update;
using testing::wholeShard;

ServedStore served(const TestDevice& device, std::string_view policy, uint64_t elements) {
  return {device.make(), testing::entryOf(policy), subtracting(), elements, 1};
}

std::vector<float> minusOnes(const Shard& shard) { return std::vector<float>(shard.range().count, -1.f); }

constexpr size_t kPushers = 3;
constexpr uint64_t kUpdates = 200;

DEVICE_TEST("async_diloco notifies a slower trainer when to push, and none if all take the whole period") {
  ServedStore store(device.make(), testing::entryOf("async_diloco"), subtracting(), 100, 1,
                    R"({"period": 4, "dynamic_period": true})");
  UpdatePolicy& policy = *store.policy;
  RoundNotices& notices = *policy.roundNotices();
  REQUIRE(policy.properties().ticks);
  TestLoop loop;
  PolicyTrainer fast(store, loop, Rank{0}), slow(store, loop, Rank{1});
  const SessionId first = fast.ref().session, second = slow.ref().session;
  const auto never = std::chrono::steady_clock::now() + std::chrono::hours(10'000);
  auto dueFirst = notices.roundDue(first, Version{0}), dueSecond = notices.roundDue(second, Version{0});
  loop.wait(policy.tick(never));
  CHECK_FALSE(loop.resolved(dueFirst));
  CHECK_FALSE(loop.resolved(dueSecond));
  Update update(store, fast.lanes(), 0, {}, minusOnes(store.shard(0)), fast.ref(), Step{1});
  update.localSteps(4);
  const auto pushed = loop.wait(update.send({0, store.shard(0).range().count}));
  PSD_REQUIRE_OK(pushed);
  CHECK(pushed->applied());  // immediately
  // The other one gets the time that the first one took; this one's next period is complete.
  auto again = notices.roundDue(first, Version{1});
  CHECK(loop.wait(kj::mv(dueFirst)).error().code == ErrorCode::notReady);
  loop.wait(policy.tick(never));
  CHECK(*loop.wait(kj::mv(dueSecond)) == RoundDue::stepsDone);
  CHECK_FALSE(loop.resolved(again));
  auto left = notices.roundDue(second, Version{1});
  slow.leave();
  CHECK(loop.wait(kj::mv(left)).error().code == ErrorCode::notReady);
  policy.endWaits({ErrorCode::shuttingDown, "over"});
  CHECK(loop.wait(kj::mv(again)).error().code == ErrorCode::shuttingDown);
  auto late = notices.roundDue(first, Version{1});
  CHECK(loop.wait(kj::mv(late)).error().code == ErrorCode::shuttingDown);
  ServedStore whole = served(device, "async_diloco", 100);
  CHECK_FALSE(whole.policy->properties().ticks);
  CHECK(whole.policy->roundNotices() == nullptr);
}

DEVICE_TEST("locked loses no update, and a pull in slices never mixes versions") {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    INFO("seed " << seed);
    ServedStore store = served(device, "locked", 2000);
    Shard& shard = store.shard(0);
    std::atomic<uint64_t> failures = 0, mixed = 0;
    REQUIRE(runOnThreads(kPushers + 1, [&](TestLoop& loop, size_t index) {
      Random random(seed * 100 + index);
      PolicyTrainer trainer(store, loop);
      for (uint64_t i = 0; i < kUpdates; i++) {
        if (index < kPushers) {
          const auto pushed =
              trainer.push(0, {}, minusOnes(shard), randomPieces(shard, random), random.oneIn(2));
          failures += pushed.failed || pushed.applied != 1;
          continue;
        }
        const Pulled pulled = trainer.pull(0, randomPieces(shard, random));
        failures += pulled.failed;
        for (Version version : pulled.versions) mixed += version != pulled.versions.front();
        // Each update adds 1 to every weight.
        mixed += !allAre(pulled.values, pulled.versions.front().value);
      }
    }));
    CHECK(failures == 0);
    CHECK(mixed == 0);
    TestLoop loop;
    const Pulled pulled = PolicyTrainer(store, loop).pull(0, wholeShard(shard));
    CHECK(allAre(pulled.values, kPushers * kUpdates));
  }
}

DEVICE_TEST("locked keeps a pull at the version of its first slice") {
  ServedStore store = served(device, "locked", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  ShardPull state;
  auto pull = [&](ShardPull& state, Piece piece) {
    auto answer = loop.wait(store.policy->pull(shard, *trainer.lanes()[0], state, piece.offset, piece.count));
    PSD_REQUIRE_OK(answer);
    return std::move(*answer);
  };
  trainer.push(0, {}, minusOnes(shard), wholeShard(shard));
  const PullAnswer first = pull(state, {32, 32});
  trainer.push(0, {}, minusOnes(shard), wholeShard(shard));
  const PullAnswer second = pull(state, {0, 32});
  for (const PullAnswer* answer : {&first, &second}) {
    CHECK(answer->version == Version{1});
    for (float value : answer->view.values) CHECK(value == 1);
  }
  ShardPull next;
  CHECK(pull(next, {0, 64}).version == Version{2});
}

DEVICE_TEST("locked makes one snapshot for all pulls of a version") {
  ServedStore store = served(device, "locked", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  auto pullWhole = [&] {
    ShardPull state;
    auto answer = loop.wait(store.policy->pull(shard, *trainer.lanes()[0], state, 0, 64));
    PSD_REQUIRE_OK(answer);
    return std::move(*answer);
  };
  const PullAnswer first = pullWhole();
  CHECK(pullWhole().view.values.data() == first.view.values.data());
  trainer.push(0, {}, minusOnes(shard), wholeShard(shard));
  const PullAnswer later = pullWhole();
  CHECK(later.view.values.data() != first.view.values.data());
  CHECK(first.view.values[0] == 0);
  CHECK(later.view.values[0] == 1);
}

DEVICE_TEST("locked queues pushes and pulls while the lock is held, and serves them in order") {
  ServedStore store = served(device, "locked", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  std::optional<ShardLock::Guard> guard = loop.wait(shard.lock().acquire());
  Update first(store, trainer.lanes(), 0, {}, minusOnes(shard));
  Update second(store, trainer.lanes(), 0, {}, minusOnes(shard));
  ShardPull state;
  auto one = first.send({0, 64});
  auto reading = store.policy->pull(shard, *trainer.lanes()[0], state, 0, 64).eagerlyEvaluate(nullptr);
  auto two = second.send({0, 64});
  CHECK_FALSE(loop.resolved(one));
  CHECK_FALSE(loop.resolved(reading));
  CHECK_FALSE(loop.resolved(two));
  guard.reset();
  CHECK(loop.wait(kj::mv(two))->version == Version{2});
  CHECK(loop.wait(kj::mv(one))->version == Version{1});
  const auto between = loop.wait(kj::mv(reading));
  CHECK(between->version == Version{1});
  CHECK(between->view.values[63] == 1);
}

DEVICE_TEST("locked does not expose a gradient before its last slice") {
  ServedStore store = served(device, "locked", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  Update update(store, trainer.lanes(), 0, {}, minusOnes(shard));
  PSD_REQUIRE_OK(loop.wait(update.send({16, 48})));
  CHECK(trainer.pull(0, wholeShard(shard)).values == std::vector<float>(64, 0.f));
  PSD_REQUIRE_OK(loop.wait(update.send({0, 16})));
  CHECK(trainer.pull(0, wholeShard(shard)).values == std::vector<float>(64, 1.f));
}

DEVICE_TEST("locked rejects staging beyond limits.staged_bytes, and continues when there is space again") {
  const uint64_t elements = 1 << 16;  // a gathered gradient fills the pool
  auto pool = makeGradientPool(elements * sizeof(float));
  ServedStore store = served(device, "locked", elements);
  ObjectReader options(nlohmann::ordered_json::object());
  store.policy = Locked::read(options).make({*store.store, 0, pool});
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  const auto gradient = minusOnes(store.shard(0));
  {
    Update first(store, trainer.lanes(), 0, {}, gradient), second(store, trainer.lanes(), 0, {}, gradient);
    PSD_REQUIRE_OK(loop.wait(first.send({0, 16})));
    CHECK(pool->lentBytes() == elements * sizeof(float));
    const auto refused = loop.wait(second.send({0, 16}));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK(refused.message().find("limits.staged_bytes") != std::string::npos);
    CHECK(trainer.push(0, {}, gradient, wholeShard(store.shard(0))).applied == 1);  // nothing to gather
    CHECK(loop.wait(first.send({16, elements - 16}))->applied());
  }
  CHECK(pool->lentBytes() == 0);
  CHECK(trainer.push(0, {}, gradient, {{16, elements - 16}, {0, 16}}).applied == 1);
}

DEVICE_TEST("hogwild takes no lock") {
  ServedStore store = served(device, "hogwild", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  auto guard = loop.wait(shard.lock().acquire());
  CHECK(trainer.push(0, {}, minusOnes(shard), wholeShard(shard)).applied == 1);
  CHECK(trainer.pull(0, wholeShard(shard)).values == std::vector<float>(64, 1.f));
}

TEST_CASE("hogwild applies each slice as it arrives, and pulls live weights") {
  ServedStore store = served(testing::kCpu, "hogwild", 64);
  Shard& shard = store.shard(0);
  TestLoop loop;
  PolicyTrainer trainer(store, loop);
  ShardPull state;
  const auto live = loop.wait(store.policy->pull(shard, *trainer.lanes()[0], state, 0, 64));
  PSD_REQUIRE_OK(live);
  Update update(store, trainer.lanes(), 0, {}, minusOnes(shard));
  PSD_REQUIRE_OK(loop.wait(update.send({16, 48})));
  CHECK(live->version == Version{0});
  CHECK(live->view.values[15] == 0);
  CHECK(live->view.values[16] == 1);
  CHECK(live->view.values[63] == 1);
}

}  // namespace
}  // namespace psd::policy_promises_test
