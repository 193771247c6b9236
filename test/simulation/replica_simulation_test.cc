#include <cstdlib>
#include <string>

#include "test/simulation/replica_world.h"

namespace psd::replica_simulation_test {
namespace {

using testing::Broken;
using testing::Random;
using testing::ReplicaCounts;
using testing::ReplicaWorld;
using testing::Saving;
using Wait = ReplicationRules::Wait;

void add(ReplicaCounts& sum, const ReplicaCounts& more) {
  sum.answered += more.answered;
  sum.swaps += more.swaps;
  sum.added += more.added;
  sum.removed += more.removed;
  sum.failovers += more.failovers;
  sum.handovers += more.handovers;
  sum.claims += more.claims;
  sum.steppedDown += more.steppedDown;
  sum.renewed += more.renewed;
  sum.ends += more.ends;
  sum.begun += more.begun;
  sum.decided += more.decided;
  sum.guessed += more.guessed;
  sum.contradicted += more.contradicted;
  sum.given += more.given;
}

std::string describe(const ReplicaCounts& counts) {
  return std::to_string(counts.answered) + " pushes answered, " + std::to_string(counts.swaps) + " swaps, " +
         std::to_string(counts.added) + " standbys added, " + std::to_string(counts.removed) + " removed, " +
         std::to_string(counts.failovers) + " failovers, " + std::to_string(counts.handovers) +
         " hand-overs, " + std::to_string(counts.claims) + " claims, " + std::to_string(counts.steppedDown) +
         " stepped down, " + std::to_string(counts.renewed) + " documents rewritten, " +
         std::to_string(counts.ends) + " runs ended, " + std::to_string(counts.begun) +
         " started after that, " + std::to_string(counts.decided) + " by an operator, who abandoned " +
         std::to_string(counts.given) + " pushes, " + std::to_string(counts.contradicted) +
         " did not follow, " + std::to_string(counts.guessed) + " documents from folders";
}

ReplicaCounts simulate(uint64_t schedules, Wait wait, Saving saving = Saving::log) {
  ReplicaCounts sum;
  testing::runSchedules(schedules, [&](Random& random) {
    ReplicaWorld world(random, Broken::nothing, wait, saving);
    const std::string violation = world.run();
    REQUIRE(violation == "");
    add(sum, world.counts());
  });
  return sum;
}

/// The seed of the first schedule that exposes the defect, up to `seeds`; 0: none does.
uint64_t caughtAt(Broken broken, uint64_t seeds, Saving saving = Saving::log) {
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    Random random(seed);
    ReplicaWorld world(random, broken, Wait::standby, saving);
    if (!world.run().empty()) return seed;
  }
  return 0;
}

TEST_CASE(
    "replica: in any schedule a daemon that may serve has each answered push once, and all get answered") {
  const ReplicaCounts counts = simulate(10'000, Wait::standby);
  WARN(describe(counts));
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(counts.added > 0);  // the schedules cover the cases under test
  CHECK(counts.removed > 0);
  CHECK(counts.failovers > 0);
  CHECK(counts.handovers > 0);
  CHECK(counts.claims > 0);
  CHECK(counts.steppedDown > 0);
  CHECK(counts.renewed > 0);
}

TEST_CASE("replica: without waiting for the standby there is one primary per term, and all get answered") {
  const ReplicaCounts counts = simulate(1000, Wait::none);
  if (std::getenv("PSD_SIMULATION_SEED") == nullptr) CHECK(counts.failovers > 0);
}

TEST_CASE(
    "replica: runs end, documents are lost and all die, and a daemon that starts has all that was answered") {
  const Saving saving = GENERATE(Saving::group, Saving::both);
  const ReplicaCounts counts = simulate(2000, Wait::standby, saving);
  WARN(describe(counts));
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(counts.ends > 0);
  CHECK(counts.begun > 0);
  CHECK(counts.decided > 0);
  CHECK(counts.guessed > 0);
  // If all died before the first checkpoint after a takeover, or an operator had to choose between two.
  CHECK(counts.given < counts.answered / (saving == Saving::both ? 1000 : 100));
}

TEST_CASE("replica: if nothing is saved the next run is started automatically, by one daemon") {
  const ReplicaCounts counts = simulate(500, Wait::standby, Saving::none);
  WARN(describe(counts));
  if (std::getenv("PSD_SIMULATION_SEED") == nullptr) CHECK(counts.begun > 0);
}

TEST_CASE("replica: the simulation catches daemons that break a rule") {
  SECTION("2: the document first, then the wait") { CHECK(caughtAt(Broken::addThenWait, 2500) > 0); }
  SECTION("3: answers first, then the document") { CHECK(caughtAt(Broken::answerThenRemove, 600) > 0); }
  SECTION("4: promoted without the document") { CHECK(caughtAt(Broken::noCas, 600) > 0); }
  SECTION("5: no answer taken for a rejection") { CHECK(caughtAt(Broken::noAnswerIsNo, 2500) > 0); }
  SECTION("6: itself after its death") { CHECK(caughtAt(Broken::sameName, 600) > 0); }
  SECTION("8: deposed, and keeps its state") { CHECK(caughtAt(Broken::keepsState, 2500) > 0); }
  SECTION("10: a new document in place of a lost one") { CHECK(caughtAt(Broken::beginsAtOnce, 2500) > 0); }
  SECTION("11: a run started from any folder") {
    CHECK(caughtAt(Broken::anyFolderBegins, 600, Saving::group) > 0);
  }
}

}  // namespace
}  // namespace psd::replica_simulation_test
