#include "server/membership/sample_plan.h"

#include <map>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd {
namespace {

constexpr SessionId kOne{1}, kTwo{2};

TEST_CASE("samples are dealt in order, epoch after epoch, and none twice") {
  SamplePlan plan(10, 2);
  CHECK(plan.take(kOne, Step{1}, 4) == SampleRange{0, 0, 4});
  CHECK(plan.take(kTwo, Step{1}, 4) == SampleRange{0, 4, 4});
  CHECK(plan.take(kOne, Step{1}, 4) == SampleRange{0, 0, 4});  // asked again
  CHECK(plan.take(kOne, Step{2}, 4) == SampleRange{0, 8, 2});  // no batch reaches into the next epoch
  CHECK(plan.take(kOne, Step{3}, 100) == SampleRange{1, 0, 10});
  CHECK_FALSE(plan.hasMore());
  CHECK_FALSE(plan.take(kTwo, Step{2}, 1));
  for (uint64_t step : {1, 2, 3}) plan.done(kOne, Step{step});
  CHECK_FALSE(plan.finished());
  plan.done(kTwo, Step{1});
  plan.done(kTwo, Step{1});
  CHECK(plan.finished());
  CHECK(plan.doneCount() == 20);
}

TEST_CASE("what a trainer that is gone did not get done is dealt again, before anything new") {
  SamplePlan plan(10, 1);
  plan.take(kOne, Step{1}, 3);
  plan.take(kOne, Step{2}, 3);
  plan.take(kTwo, Step{1}, 2);
  CHECK(plan.openSteps(kOne) == 2);
  plan.done(kOne, Step{1});
  CHECK(plan.openSteps(kOne) == 1);
  CHECK(plan.leave(kOne) == std::vector<Step>{Step{2}});
  CHECK(plan.take(kTwo, Step{2}, 2) == SampleRange{0, 3, 2});
  CHECK(plan.take(kTwo, Step{3}, 2) == SampleRange{0, 5, 1});
  CHECK(plan.take(kTwo, Step{4}, 5) == SampleRange{0, 8, 2});
  plan.giveBack(kTwo, Step{3});  // its gradient was dropped
  CHECK(plan.take(kTwo, Step{5}, 5) == SampleRange{0, 5, 1});
}

TEST_CASE("a plan may begin in a later epoch") {
  SamplePlan plan(5, 3, 2);
  CHECK(plan.take(kOne, Step{1}, 9) == SampleRange{2, 0, 5});
  CHECK_FALSE(plan.hasMore());
  CHECK(SamplePlan(5, 3, 3).finished());
}

TEST_CASE("whatever trainers do, every sample of every epoch is done once") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    const uint64_t samples = random.between(1, 50), epochs = random.between(1, 3);
    SamplePlan plan(samples, epochs);
    std::map<std::pair<SessionId, Step>, SampleRange> open;
    std::vector<std::vector<int>> counts(epochs, std::vector<int>(samples));
    uint64_t nextSession = 4, nextStep = 1;
    std::vector<SessionId> in = {SessionId{1}, SessionId{2}, SessionId{3}};
    for (int i = 0; !plan.finished(); i++) {
      REQUIRE(i < 100'000);
      SessionId& session = in[random.below(in.size())];
      const bool takes = open.empty() || random.oneIn(2);
      if (takes) {
        const Step step{nextStep++};
        if (auto range = plan.take(session, step, random.between(1, 8))) open[{session, step}] = *range;
      } else if (random.oneIn(10)) {  // it dies, and another comes
        plan.leave(session);
        std::erase_if(open, [&](const auto& entry) { return entry.first.first == session; });
        session = SessionId{nextSession++};
      } else {
        auto over = std::next(open.begin(), static_cast<ptrdiff_t>(random.below(open.size())));
        const auto [key, range] = *over;
        open.erase(over);
        if (random.oneIn(5)) {
          plan.giveBack(key.first, key.second);
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
}  // namespace psd
