#include <cstdlib>
#include <string>

#include "test/simulation/moving_world.h"

namespace psd::moving_simulation_test {
namespace {

using testing::Broken;
using testing::MoveCounts;
using testing::MovingWorld;
using testing::Random;

/// The seed of the first schedule that exposes the defect, up to `seeds`; 0: none does.
uint64_t caughtAt(Broken broken, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    Random random(seed);
    MovingWorld world(random, broken);
    if (!world.run().empty()) return seed;
  }
  return 0;
}

TEST_CASE("moves: in any schedule the model is served in one place, which has each answered push once") {
  MoveCounts sum;
  testing::runSchedules(10'000, [&](Random& random) {
    MovingWorld world(random, Broken::nothing);
    const std::string violation = world.run();
    REQUIRE(violation == "");
    const MoveCounts& counts = world.moves();
    sum.begun += counts.begun;
    sum.aborted += counts.aborted;
    sum.committed += counts.committed;
    sum.asked += counts.asked;
    sum.commandDied += counts.commandDied;
    sum.takeovers += counts.takeovers;
    sum.restarts += counts.restarts;
  });
  WARN(sum.begun << " moves begun, " << sum.aborted << " aborted, " << sum.committed << " committed, "
                 << sum.asked << " by the lead's answer; the command died " << sum.commandDied
                 << " times, the primary " << sum.takeovers
                 << " times during a move, and other daemons restarted " << sum.restarts << " times");
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(sum.aborted > 0);  // the schedules cover the cases under test
  CHECK(sum.committed > 0);
  CHECK(sum.asked > 0);
  CHECK(sum.commandDied > 0);
  CHECK(sum.takeovers > 0);
  CHECK(sum.restarts > 0);
}

TEST_CASE("moves: the simulation catches daemons that break a rule") {
  SECTION("no answer taken for a rejection") { CHECK(caughtAt(Broken::noAnswerIsNoMove, 5000) > 0); }
  SECTION("admitted before the commit") { CHECK(caughtAt(Broken::admitsUndecided, 2500) > 0); }
  SECTION("discarded without asking") { CHECK(caughtAt(Broken::forgetsUnknown, 2500) > 0); }
}

}  // namespace
}  // namespace psd::moving_simulation_test
