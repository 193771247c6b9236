#include "server/membership/averaging_groups.h"

#include "test/support/catch.h"

namespace psd::averaging_groups_test {
namespace {

using std::chrono::milliseconds;

constexpr SessionId kA{1}, kB{2}, kC{3};

AveragingGroups::TimePoint at(int ms) { return AveragingGroups::TimePoint{} + milliseconds(ms); }

/// Of the joined trainers A, B and C, with ranks 2, 1 and 0; the patience is 100 ms.
AveragingGroups groupsOfThree(uint32_t startTrainers = 3) {
  AveragingGroups groups(7, milliseconds(100), startTrainers);
  groups.join(kA, Rank{2});
  groups.join(kB, Rank{1});
  groups.join(kC, Rank{0});
  return groups;
}

void wait(AveragingGroups& groups, std::initializer_list<SessionId> sessions, int ms) {
  for (const SessionId session : sessions) groups.wait(session, {"host", 1}, at(ms));
}

std::vector<uint32_t> ranks(const AveragingGroups& groups) {
  std::vector<uint32_t> found;
  for (const auto& [session, member] : groups.members()) found.push_back(member.rank.value);
  return found;
}

}  // namespace

TEST_CASE("averaging groups: a former member waits for a silent one no longer than the members do") {
  AveragingGroups groups = groupsOfThree();
  groups.wait(kA, {"host", 1, 99}, at(0));
  groups.wait(kB, {"host", 1, 99}, at(5));
  CHECK_FALSE(groups.due(at(99)));
  CHECK(groups.due(at(100)));
  groups.form(Version{});
  CHECK(ranks(groups) == std::vector<uint32_t>{1, 2});
}

TEST_CASE("averaging groups: the first contains all trainers, by rank, and the lowest rank leads") {
  AveragingGroups groups = groupsOfThree();
  CHECK_FALSE(groups.due(at(0)));
  wait(groups, {kA, kB}, 0);
  CHECK_FALSE(groups.due(at(1'000'000)));  // no member's step failed
  wait(groups, {kC}, 5);
  REQUIRE(groups.due(at(5)));
  groups.form(Version{3});
  CHECK(groups.generation() == 7);
  CHECK(ranks(groups) == std::vector<uint32_t>{0, 1, 2});
  CHECK(groups.leads(kC));
  CHECK_FALSE(groups.leads(kA));
  CHECK_FALSE(groups.wanted());
  CHECK(groups.reachedBy(7) == Version{});
}

TEST_CASE("averaging groups: the first waits for its trainers to join") {
  AveragingGroups groups(1, milliseconds(100), 2);
  groups.join(kA, Rank{0});
  wait(groups, {kA}, 0);
  CHECK_FALSE(groups.due(at(500)));
  CHECK(groups.joinsNeeded() == 1);
  groups.join(kB, Rank{1});
  CHECK(groups.joinsNeeded() == 0);
  CHECK(groups.awaited() == std::vector<SessionId>{kB});
  wait(groups, {kB}, 600);
  CHECK(groups.due(at(600)));
}

TEST_CASE("averaging groups: members whose step failed wait for the others up to the patience") {
  AveragingGroups groups = groupsOfThree();
  wait(groups, {kA, kB, kC}, 0);
  groups.form(Version{0});
  wait(groups, {kA}, 1000);
  wait(groups, {kB}, 1050);
  CHECK(groups.wanted());
  CHECK_FALSE(groups.due(at(1099)));
  REQUIRE(groups.due(at(1100)));
  groups.form(Version{9});
  CHECK(ranks(groups) == std::vector<uint32_t>{1, 2});
  CHECK(groups.leads(kB));
  CHECK_FALSE(groups.leads(kC));  // its later pushes are dropped
  CHECK(groups.reachedBy(7) == Version{9});
}

TEST_CASE("averaging groups: a member that leaves is not waited for") {
  AveragingGroups groups = groupsOfThree();
  wait(groups, {kA, kB, kC}, 0);
  groups.form(Version{0});
  wait(groups, {kA, kB}, 10);
  CHECK_FALSE(groups.due(at(11)));
  groups.leave(kC);
  CHECK(groups.due(at(11)));
  groups.leave(kA);
  groups.leave(kB);
  CHECK_FALSE(groups.due(at(10'000)));
  CHECK_FALSE(groups.waitingSince());
}

TEST_CASE("averaging groups: a trainer that joins does not shorten a wait") {
  AveragingGroups groups(1, milliseconds(100), 1);
  groups.join(kA, Rank{0});
  wait(groups, {kA}, 0);
  groups.form(Version{0});
  groups.join(kB, Rank{1});
  wait(groups, {kB}, 10);
  CHECK(groups.wanted());
  CHECK_FALSE(groups.due(at(1'000'000)));
  wait(groups, {kA}, 1'000'001);
  CHECK(groups.due(at(1'000'001)));
}

TEST_CASE("averaging groups: the results of a bounded number of earlier groups are known") {
  AveragingGroups groups(1, milliseconds(100), 1);
  groups.join(kA, Rank{0});
  for (uint64_t i = 0; i < AveragingGroups::kKept + 3; i++) {
    wait(groups, {kA}, 0);
    REQUIRE(groups.due(at(0)));
    groups.form(Version{10 * i});
  }
  CHECK(groups.reachedBy(1) == Version{});
  CHECK(groups.reachedBy(AveragingGroups::kKept + 2) == Version{10 * (AveragingGroups::kKept + 2)});
}

}  // namespace psd::averaging_groups_test
