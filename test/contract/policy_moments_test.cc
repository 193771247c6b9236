// The moments of rounds, by which several daemons publish the same state (RoundMoments).

#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "test/contract/policy_trainer.h"

namespace psd::policy_moments_test {
namespace {

using testing::allAre;
using testing::PolicyTrainer;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;

constexpr uint64_t kElements = 100;

/// Keeps what it is given until it expires. Owned by the test's thread.
struct Recorder final : RoundMoments {
  struct Given {
    RoundMoment moment;
    ShardLock::Guard applying;
  };
  void applied(uint32_t, RoundMoment moment, ShardLock::Guard applying) override {
    given.push_back({moment, std::move(applying)});
  }
  void unnamed(uint32_t) override { unnamedRounds++; }
  void expire(std::chrono::steady_clock::time_point) override { given.clear(); }
  std::deque<Given> given;
  int unnamedRounds = 0;
};

struct World {
  explicit World(const char* options = "{}")
      : recorder(std::make_shared<Recorder>()),
        served(makeCpuBackend(), testing::entryOf("sync"), subtracting(),
               ModelSpec{"", {{"w", DType::f32, {kElements}}}}, 2, options, false, recorder) {}
  std::vector<float> ones() const {
    return std::vector<float>(served.store->layout().totalElements(), -1.0F);
  }

  TestLoop loop;
  std::shared_ptr<Recorder> recorder;
  ServedStore served;
};

TEST_CASE("Moments: a round is named by what its trainers say, and the next one waits for the copy") {
  World world;
  PolicyTrainer one(world.served, world.loop, Rank{0}), two(world.served, world.loop, Rank{1});
  const auto round = [&](uint64_t version, uint64_t number) {
    auto first = one.startAll(Version{version}, world.ones(), 1, {}, number);
    auto second = two.startAll(Version{version}, world.ones(), 1, {}, number);
    return std::pair(kj::mv(first), kj::mv(second));
  };
  auto [a, b] = round(0, 71);
  CHECK(world.loop.wait(kj::mv(a))->applied());  // answered while the copy is awaited
  CHECK(world.loop.wait(kj::mv(b))->applied());
  REQUIRE(world.recorder->given.size() == 1);
  CHECK(world.recorder->given.front().moment == RoundMoment{71, momentIdOf(0, 0, 1)});
  auto [c, d] = round(1, 72);
  CHECK_FALSE(world.loop.resolved(d));
  CHECK(allAre(one.pullAll(), 1));  // pulls do not wait
  CHECK(world.served.shard(0).version() == Version{1});
  world.recorder->given.pop_front();
  CHECK(world.loop.wait(kj::mv(c))->applied());
  CHECK(world.loop.wait(kj::mv(d))->applied());
  REQUIRE(world.recorder->given.size() == 1);
  CHECK(world.recorder->given.front().moment == RoundMoment{72, momentIdOf(0, 0, 2)});
  world.recorder->given.clear();
}

TEST_CASE("Moments: a copy that does not come holds training for a limited time, also without timeouts") {
  World world(R"({"round_timeout_ms": 0})");
  CHECK(world.served.policy->properties().ticks);  // else nothing calls tick()
  PolicyTrainer trainer(world.served, world.loop);
  auto first = trainer.startAll(Version{0}, world.ones(), 1, {}, 1);
  CHECK(world.loop.wait(kj::mv(first))->applied());
  auto second = trainer.startAll(Version{1}, world.ones(), 1, {}, 2);
  CHECK_FALSE(world.loop.resolved(second));
  world.loop.wait(world.served.policy->tick(std::chrono::steady_clock::now()));
  CHECK(world.loop.wait(kj::mv(second))->applied());
  auto quiet = world.served.policy->quiesce();
  CHECK_FALSE(world.loop.resolved(quiet));
  world.loop.wait(world.served.policy->tick(std::chrono::steady_clock::now()));
  world.loop.wait(kj::mv(quiet));
}

TEST_CASE("Moments: the lowest rank names the round") {
  World world;
  PolicyTrainer one(world.served, world.loop, Rank{0}), two(world.served, world.loop, Rank{1});
  uint64_t version = 0;
  for (const auto& [first, second] : {std::pair<uint64_t, uint64_t>(0, 0), {5, 6}, {6, 0}, {0, 6}}) {
    auto a = one.startAll(Version{version}, world.ones(), 1, {}, first);
    auto b = two.startAll(Version{version}, world.ones(), 1, {}, second);
    CHECK(world.loop.wait(kj::mv(a))->applied());
    CHECK(world.loop.wait(kj::mv(b))->applied());
    version++;
    std::vector<RoundMoment> given;
    for (const auto& each : world.recorder->given) given.push_back(each.moment);
    world.recorder->given.clear();
    if (first == 0) CHECK(given.empty());
    if (first != 0) CHECK(given == std::vector<RoundMoment>{{first, momentIdOf(0, 0, version)}});
  }
  CHECK(world.recorder->unnamedRounds == 2);
}

TEST_CASE("Moments: the id is that of the lowest rank in the round") {
  World world(R"({"backup_trainers": 1})");
  PolicyTrainer one(world.served, world.loop, Rank{0}), two(world.served, world.loop, Rank{1});
  CHECK(two.pushAll(Version{0}, world.ones()).ok());
  auto a = two.startAll(Version{1}, world.ones(), 1, {}, 9);
  CHECK(world.loop.wait(kj::mv(a))->applied());
  REQUIRE(world.recorder->given.size() == 1);
  CHECK(world.recorder->given.front().moment == RoundMoment{9, momentIdOf(1, 0, 2)});
  world.recorder->given.clear();
  CHECK(momentIdOf(0, 1, 2) != momentIdOf(0, 2, 1));
  CHECK(momentIdOf(0, 1, 2) != momentIdOf(1, 0, 2));
}

}  // namespace
}  // namespace psd::policy_moments_test
