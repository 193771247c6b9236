// Under allreduce: which of several trainers pushes, and the outcome of pushes by others.

#include "server/policy/policy_list.h"
#include "test/contract/policy_trainer.h"
#include "test/support/catch.h"

namespace psd::policy_averages_test {
namespace {

using testing::PolicyTrainer;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;

constexpr uint64_t kElements = 1000;

PolicyEntry allreduce() {
  for (const PolicyEntry& one : kPolicyList) {
    if (one.type == "allreduce") return one;
  }
  FAIL("there is no allreduce");
  return kPolicyList[0];
}

/// Two trainers of which neither is in a group yet.
struct Averaging {
  Averaging()
      : served(makeCpuBackend(), allreduce(), subtracting(), kElements, 3,
               R"({"start_trainers": 2, "timeout_ms": 100})"),
        gradient(served.store->layout().totalElements(), -1.f) {}

  ServedStore served;
  TestLoop loop;
  const std::vector<float> gradient;
};

}  // namespace

TEST_CASE("allreduce: only the first of a group pushes") {
  Averaging averaging;
  PolicyTrainer second(averaging.served, averaging.loop, Rank{1});
  CHECK(second.pushAll(Version{0}, averaging.gradient)->outcome == PushOutcome::late);
  PolicyTrainer first(averaging.served, averaging.loop, Rank{0});  // which completes the group
  CHECK(averaging.served.policy->rounds()->report().last.contributors == std::vector<Rank>{Rank{0}, Rank{1}});
  CHECK(second.pushAll(Version{0}, averaging.gradient)->outcome == PushOutcome::late);
  CHECK(first.pushAll(Version{0}, averaging.gradient)->applied());
  CHECK(first.pushAll(Version{0}, averaging.gradient)->outcome == PushOutcome::late);  // of older parameters
  CHECK(first.pushAll(Version{1}, averaging.gradient)->applied());
  for (size_t s = 0; s < 3; s++) CHECK(averaging.served.shard(s).version() == Version{2});
}

TEST_CASE("allreduce: the next group excludes absent trainers, whose pushes are dropped") {
  Averaging averaging;
  PolicyTrainer first(averaging.served, averaging.loop, Rank{0}),
      second(averaging.served, averaging.loop, Rank{1});
  const uint64_t before = *averaging.served.policy->rounds()->report().generation;
  REQUIRE(first.pushAll(Version{0}, averaging.gradient)->applied());
  auto next = second.formAveragingGroup(before).eagerlyEvaluate(nullptr);
  REQUIRE(averaging.loop.until([&] {
    averaging.loop.wait(averaging.served.policy->tick(std::chrono::steady_clock::now()));
    return averaging.served.policy->rounds()->report().last.contributors == std::vector<Rank>{Rank{1}};
  }));
  const Result<FormedGroup> formed = averaging.loop.wait(kj::mv(next));
  PSD_REQUIRE_OK(formed);
  CHECK(formed->generation > before);
  CHECK(formed->reached == Version{1});
  CHECK(first.pushAll(Version{1}, averaging.gradient)->outcome == PushOutcome::late);
  CHECK(second.pushAll(Version{1}, averaging.gradient)->applied());
}

TEST_CASE(
    "allreduce: the first is notified that a joined trainer waits, and a departed one is not waited for") {
  Averaging averaging;
  PolicyTrainer first(averaging.served, averaging.loop, Rank{0}),
      second(averaging.served, averaging.loop, Rank{1});
  auto wanted = averaging.served.policy->roundNotices()
                    ->roundDue(first.ref().session, Version{})
                    .eagerlyEvaluate(nullptr);
  PolicyTrainer third(averaging.served, averaging.loop, Rank{2});  // which asks
  const Result<RoundDue> told = averaging.loop.wait(kj::mv(wanted));
  PSD_REQUIRE_OK(told);
  CHECK(*told == RoundDue::groupWanted);
  second.leave();
  const Result<FormedGroup> formed = averaging.loop.wait(first.formAveragingGroup(1));
  PSD_REQUIRE_OK(formed);
  CHECK(formed->index == 0);
  CHECK(formed->members.size() == 2);
  CHECK(averaging.served.policy->rounds()->report().last.contributors == std::vector<Rank>{Rank{0}, Rank{2}});
}

TEST_CASE("allreduce: waits end with the daemon") {
  Averaging averaging;
  PolicyTrainer alone(averaging.served, averaging.loop, Rank{0});
  auto waits = alone.formAveragingGroup(0).eagerlyEvaluate(nullptr);
  averaging.served.policy->endWaits({ErrorCode::shuttingDown, "the daemon ends"});
  CHECK(averaging.loop.wait(kj::mv(waits)).error().code == ErrorCode::shuttingDown);
  CHECK(averaging.loop.wait(alone.formAveragingGroup(0)).error().code == ErrorCode::shuttingDown);
}

}  // namespace psd::policy_averages_test
