// Promises of bounded_staleness beyond policy_contract_test.cc.

#include <deque>
#include <vector>

#include "server/policy/bounded_staleness.h"
#include "test/contract/policy_trainer.h"

namespace psd::policy_bound_test {
namespace {

using testing::eachDevice;
using testing::PolicyTrainer;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;

/// Two shards, bound 1, and two trainers.
struct Bounded {
  Bounded() : served(eachDevice().make(), entry(), subtracting(), 1000, 2, R"({"bound": 1})") {
    trainers.emplace_back(served, loop, Rank{0});
    trainers.emplace_back(served, loop, Rank{1});
  }
  static PolicyEntry entry() {
    for (const PolicyEntry& one : kPolicyList) {
      if (one.type == "bounded_staleness") return one;
    }
    FAIL("there is no bounded_staleness");
    return kPolicyList[0];
  }
  void step(size_t trainer) {
    const std::vector<float> gradient(served.store->layout().totalElements(), -1.f);
    REQUIRE(trainers[trainer].pushAll({}, gradient)->applied());
  }
  kj::Promise<Result<PullAnswer>> read(std::optional<TrainerRef> reader) {
    ShardPull& pull = pulls.emplace_back();
    pull.trainer = reader;
    return served.policy->pull(served.shard(1), *trainers[0].lanes()[0], pull, 0, 16)
        .eagerlyEvaluate(nullptr);
  }

  ServedStore served;
  TestLoop loop;
  std::deque<PolicyTrainer> trainers;
  std::deque<ShardPull> pulls;
};

TEST_CASE("bounded_staleness makes a trainer that is too far ahead wait, until the slowest has stepped") {
  Bounded bounded;
  const TrainerRef fast = bounded.trainers[0].ref(), slow = bounded.trainers[1].ref();
  bounded.step(0);
  CHECK(bounded.loop.wait(bounded.read(fast)).ok());  // one ahead is within the bound
  bounded.step(0);
  auto parked = bounded.read(fast);
  CHECK_FALSE(bounded.loop.resolved(parked));
  const auto waiting = bounded.served.policy->waiting();
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].what == "bound 1, 2 ahead");
  CHECK(waiting[0].waiters == std::vector<SessionId>{fast.session});
  REQUIRE(waiting[0].awaited.size() == 1);
  CHECK(waiting[0].awaited[0].session == slow.session);
  CHECK(bounded.loop.wait(bounded.read(slow)).ok());
  CHECK(bounded.loop.wait(bounded.read(std::nullopt)).ok());  // an observer is never ahead
  bounded.step(1);
  const auto answer = bounded.loop.wait(kj::mv(parked));
  PSD_REQUIRE_OK(answer);
  CHECK(answer->version == Version{3});
  CHECK(bounded.served.policy->waiting().empty());
}

TEST_CASE("bounded_staleness counts a step when all shards have it") {
  Bounded bounded;
  const std::vector<float> gradient(bounded.served.shard(0).range().count, -1.f);
  for (int i = 0; i < 5; i++) {
    CHECK(bounded.trainers[0].push(0, {}, gradient, testing::wholeShard(bounded.served.shard(0))).applied ==
          1);
  }
  CHECK(bounded.loop.wait(bounded.read(bounded.trainers[0].ref())).ok());
}

TEST_CASE("bounded_staleness drops the oldest step that lacks a shard, once too many do") {
  Bounded bounded;
  PolicyTrainer& trainer = bounded.trainers[0];
  const auto part = [&](size_t shard, uint64_t step) {
    const ShardRange& range = bounded.served.shard(shard).range();
    const std::vector<float> gradient(range.count, -1.f);
    testing::Update update(bounded.served, trainer.lanes(), shard, {}, gradient, trainer.ref(), Step{step});
    PSD_REQUIRE_OK(bounded.loop.wait(update.send({0, range.count})));
  };
  constexpr uint64_t kFirstKept = 2, kLast = BoundedStaleness::kStepsMax + 1;
  for (uint64_t step = 1; step <= kLast; step++) part(0, step);
  part(1, 1);  // the other half of a dropped step is ignored
  part(1, kFirstKept);
  PSD_REQUIRE_OK(bounded.loop.wait(bounded.read(trainer.ref())));  // one step ahead, not two
  part(1, kLast);
  auto parked = bounded.read(trainer.ref());
  CHECK_FALSE(bounded.loop.resolved(parked));
}

TEST_CASE("bounded_staleness does not wait for departed trainers") {
  Bounded bounded;
  bounded.step(0);
  bounded.step(0);
  auto parked = bounded.read(bounded.trainers[0].ref());
  CHECK_FALSE(bounded.loop.resolved(parked));
  bounded.trainers[1].leave();
  PSD_REQUIRE_OK(bounded.loop.wait(kj::mv(parked)));
  // A trainer that joins now starts where the slowest is.
  bounded.trainers.emplace_back(bounded.served, bounded.loop, Rank{1});
  PSD_REQUIRE_OK(bounded.loop.wait(bounded.read(bounded.trainers[0].ref())));
}

TEST_CASE("bounded_staleness answers waiters when there is nothing left to wait for") {
  Bounded bounded;
  bounded.step(0);
  bounded.step(0);
  auto parked = bounded.read(bounded.trainers[0].ref());
  CHECK_FALSE(bounded.loop.resolved(parked));
  bounded.served.policy->endWaits({ErrorCode::shuttingDown, "the end"});
  for (const auto& answer :
       {bounded.loop.wait(kj::mv(parked)), bounded.loop.wait(bounded.read(bounded.trainers[0].ref()))}) {
    REQUIRE_FALSE(answer.ok());
    CHECK(answer.error().code == ErrorCode::shuttingDown);
  }
  PSD_REQUIRE_OK(bounded.loop.wait(bounded.read(bounded.trainers[1].ref())));
}

}  // namespace
}  // namespace psd::policy_bound_test
