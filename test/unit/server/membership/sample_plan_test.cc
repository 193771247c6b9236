#include "server/membership/sample_plan.h"

#include <map>
#include <optional>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::sample_plan_test {
namespace {

constexpr ProcessId kOne{1}, kTwo{2};

/// A process of a trainer, by default with the number of the trainer.
TrainerProcess processOf(ProcessId trainer) {
  return {Rank{static_cast<uint32_t>(trainer.value)}, 100 + trainer.value};
}

SamplePlan planOf(uint64_t samples, uint64_t epochs, uint64_t firstEpoch = 0) {
  SamplePlan plan;
  PSD_REQUIRE_OK(plan.begin(samples, epochs, firstEpoch));
  return plan;
}

std::optional<SampleRange> take(SamplePlan& plan, ProcessId trainer, uint64_t step, uint64_t count) {
  const auto assignment = plan.take(trainer, processOf(trainer), Step{step}, count);
  return assignment ? std::optional(assignment->range) : std::nullopt;
}

SamplePlan restored(const SamplePlan& plan) {
  auto result = SamplePlan::restore(plan.saved());
  PSD_REQUIRE_OK(result);
  CHECK(result->saved() == plan.saved());
  return *std::move(result);
}

TEST_CASE("samples are assigned in order, epoch after epoch, and none twice") {
  SamplePlan plan = planOf(10, 2);
  CHECK(take(plan, kOne, 1, 4) == SampleRange{0, 0, 4});
  CHECK(take(plan, kTwo, 1, 4) == SampleRange{0, 4, 4});
  CHECK(take(plan, kOne, 1, 4) == SampleRange{0, 0, 4});  // requested again
  CHECK(take(plan, kOne, 2, 4) == SampleRange{0, 8, 2});  // no batch crosses into the next epoch
  CHECK(take(plan, kOne, 3, 100) == SampleRange{1, 0, 10});
  CHECK_FALSE(plan.hasMore());
  CHECK_FALSE(take(plan, kTwo, 2, 1));
  for (uint64_t step : {1, 2, 3}) plan.done(kOne, Step{step});
  CHECK_FALSE(plan.finished());
  plan.done(kTwo, Step{1});
  plan.done(kTwo, Step{1});
  CHECK(plan.finished());
  CHECK(plan.doneCount() == 20);
}

TEST_CASE("unfinished samples of a departed trainer are assigned again, before anything new") {
  SamplePlan plan = planOf(10, 1);
  take(plan, kOne, 1, 3);
  take(plan, kOne, 2, 3);
  take(plan, kTwo, 1, 2);
  CHECK(plan.openSteps(kOne) == 2);
  plan.done(kOne, Step{1});
  CHECK(plan.openSteps(kOne) == 1);
  CHECK(plan.leave(kOne) == std::vector<Step>{Step{2}});
  CHECK(take(plan, kTwo, 2, 2) == SampleRange{0, 3, 2});
  CHECK(take(plan, kTwo, 3, 2) == SampleRange{0, 5, 1});
  CHECK(take(plan, kTwo, 4, 5) == SampleRange{0, 8, 2});
  plan.returnSamples(kTwo, Step{3});  // its gradient was dropped
  CHECK(take(plan, kTwo, 5, 5) == SampleRange{0, 5, 1});
}

TEST_CASE("a plan may start in a later epoch") {
  SamplePlan plan = planOf(5, 3, 2);
  CHECK(take(plan, kOne, 1, 9) == SampleRange{2, 0, 5});
  CHECK_FALSE(plan.hasMore());
  CHECK(planOf(5, 3, 3).finished());
}

TEST_CASE("a saved plan resumes, and a trainer that rejoins has its previous samples") {
  SamplePlan plan = planOf(10, 2);
  take(plan, kOne, 1, 4);
  take(plan, kTwo, 1, 4);
  take(plan, kOne, 2, 4);
  plan.done(kOne, Step{1});
  SamplePlan after = restored(plan);
  CHECK(after.doneCount() == 4);
  CHECK(after.underWayCount() == 6);
  CHECK_FALSE(take(after, ProcessId{9}, 1, 10) == SampleRange{0, 4, 4});  // it waits
  const auto back = after.reclaim(ProcessId{5}, processOf(kOne), {{Step{2}, {0, 8, 2}}});
  CHECK(back.claimed.empty());
  CHECK(back.lost.empty());
  CHECK(take(after, ProcessId{5}, 2, 4) == SampleRange{0, 8, 2});
  after.done(ProcessId{5}, Step{2});
  after.returnAllAway();
  CHECK(take(after, ProcessId{9}, 2, 10) == SampleRange{0, 4, 4});
  CHECK(after.doneCount() == 6);
}

TEST_CASE("a rejoining trainer does not resume what others have, what is done, or what it does not name") {
  SamplePlan plan = planOf(20, 1);
  take(plan, kOne, 1, 4);  // 0 to 3
  take(plan, kOne, 2, 4);  // 4 to 7, of which it is notified that they were dropped
  take(plan, kTwo, 1, 4);  // 8 to 11
  plan.done(kTwo, Step{1});
  SamplePlan after = restored(plan);
  // 12 to 15 were assigned when the plan was saved; 16 to 19 too, and are another's by now.
  REQUIRE(take(after, kTwo, 5, 4) == SampleRange{0, 12, 4});
  const auto back = after.reclaim(ProcessId{5}, processOf(kOne),
                                  {{Step{1}, {0, 0, 4}},
                                   {Step{3}, {0, 16, 4}},
                                   {Step{4}, {0, 12, 4}},
                                   {Step{5}, {0, 8, 4}},
                                   {Step{6}, {0, 18, 3}},
                                   {Step{7}, {1, 0, 1}}});
  REQUIRE(back.claimed.size() == 1);
  CHECK(back.claimed[0] == SampleAssignment{{Step{3}, {0, 16, 4}}, processOf(kOne), 5});
  CHECK(back.lost == std::vector<Step>{Step{4}, Step{5}, Step{6}, Step{7}});
  CHECK(after.openSteps(ProcessId{5}) == 2);
  CHECK(take(after, kTwo, 6, 9) == SampleRange{0, 4, 4});
}

TEST_CASE("a trainer that did not receive its samples requests them again, and its gradient counts") {
  SamplePlan plan = planOf(8, 1);
  take(plan, kOne, 1, 4);  // which the trainer did not receive
  SamplePlan after = restored(plan);
  CHECK(after.reclaim(ProcessId{5}, processOf(kOne), {}).lost.empty());
  CHECK(take(after, ProcessId{5}, 1, 4) == SampleRange{0, 0, 4});
  after.done(ProcessId{5}, Step{1});
  CHECK(after.doneCount() == 4);
}

TEST_CASE("samples finished while shards are being saved are saved as possibly missing from some") {
  SamplePlan plan = planOf(15, 1);
  for (uint64_t step : {1, 2, 3}) take(plan, kOne, step, 5);
  plan.done(kOne, Step{1});
  plan.beginShard();
  plan.beginShard();
  plan.done(kOne, Step{2});
  plan.beginShard();
  plan.done(kOne, Step{3});
  CHECK(plan.finished());
  const SavedSamples saved = plan.saved();
  REQUIRE(saved.underWay.size() == 2);
  CHECK(saved.underWay[0] == SavedAssignment{{{Step{2}, {0, 5, 5}}, processOf(kOne)}, 2});
  CHECK(saved.underWay[1] == SavedAssignment{{{Step{3}, {0, 10, 5}}, processOf(kOne)}, 3});
  plan.endSaving();
  CHECK(plan.saved().underWay.empty());
}

TEST_CASE("one plan follows the other, and a finished one that is closed stays so") {
  SamplePlan plan;
  CHECK_FALSE(plan.begun());
  CHECK_FALSE(plan.finished());
  CHECK(plan.begin(0, 1).error().code == ErrorCode::invalidArgument);
  CHECK(plan.begin(uint64_t{1} << 40, uint64_t{1} << 30).error().code == ErrorCode::invalidArgument);
  plan = planOf(5, 1);
  take(plan, kOne, 1, 5);
  plan.done(kOne, Step{1});
  plan.close();
  plan = restored(plan);
  CHECK(plan.closed());
  PSD_REQUIRE_OK(plan.begin(7, 1));
  CHECK(plan.terms() == PlanTerms{2, 7, 1, 0});
  CHECK_FALSE(plan.closed());
  CHECK(take(plan, kOne, 2, 9) == SampleRange{0, 0, 7});
}

TEST_CASE("an inconsistent saved plan is rejected") {
  SamplePlan plan = planOf(10, 2);
  take(plan, kOne, 1, 5);
  const SavedSamples whole = plan.saved();
  const auto refused = [&](auto change) {
    SavedSamples wrong = whole;
    change(wrong);
    return !SamplePlan::restore(wrong).ok();
  };
  CHECK(refused([](SavedSamples& saved) { saved.terms.number = 0; }));
  CHECK(refused([](SavedSamples& saved) { saved.terms.epochs = UINT64_MAX; }));
  CHECK(refused([](SavedSamples& saved) { saved.free.add(20, 1); }));
  CHECK(refused([](SavedSamples& saved) { saved.free.add(4, 1); }));
  CHECK(refused([](SavedSamples& saved) { saved.closed = true; }));
  for (const SampleRange& range :
       {SampleRange{2, 0, 5}, {0, 8, 5}, {0, 10, 1}, {0, 0, 0}, {0, 1, UINT64_MAX}}) {
    CHECK(refused([&](SavedSamples& saved) { saved.underWay[0].range = range; }));
  }
  CHECK_FALSE(refused([](SavedSamples&) {}));
}

TEST_CASE("under any behavior of trainers every sample of every epoch is done once") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    const uint64_t samples = random.between(1, 50), epochs = random.between(1, 3);
    SamplePlan plan = planOf(samples, epochs);
    std::map<std::pair<ProcessId, Step>, SampleRange> open;
    std::vector<std::vector<int>> counts(epochs, std::vector<int>(samples));
    uint64_t nextTrainer = 4, nextStep = 1;
    std::vector<ProcessId> in = {ProcessId{1}, ProcessId{2}, ProcessId{3}};
    for (int i = 0; !plan.finished(); i++) {
      REQUIRE(i < 100'000);
      testing::requireInvariants(plan);
      ProcessId& trainer = in[random.below(in.size())];
      const bool takes = open.empty() || random.oneIn(2);
      if (takes) {
        const Step step{nextStep++};
        if (auto range = take(plan, trainer, step.value, random.between(1, 8)))
          open[{trainer, step}] = *range;
      } else if (random.oneIn(10)) {  // it dies, and another joins
        plan.leave(trainer);
        std::erase_if(open, [&](const auto& entry) { return entry.first.first == trainer; });
        trainer = ProcessId{nextTrainer++};
      } else {
        auto over = std::next(open.begin(), static_cast<ptrdiff_t>(random.below(open.size())));
        const auto [key, range] = *over;
        open.erase(over);
        if (random.oneIn(5)) {
          plan.returnSamples(key.first, key.second);
          continue;
        }
        plan.done(key.first, key.second);
        for (uint64_t at = range.begin; at < range.begin + range.count; at++) counts[range.epoch][at]++;
      }
    }
    for (const auto& epoch : counts) REQUIRE(epoch == std::vector<int>(samples, 1));
    CHECK(plan.doneCount() == samples * epochs);
  }
}

}  // namespace
}  // namespace psd::sample_plan_test
