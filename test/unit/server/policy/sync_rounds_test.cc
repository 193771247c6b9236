#include "server/policy/sync_rounds.h"

#include <cmath>
#include <random>
#include <set>

#include "test/support/catch.h"

namespace psd::sync_rounds_test {
namespace {

using std::chrono::milliseconds;
using Contribution = SyncRounds::Contribution;
using How = RoundEnd::How;
using Sessions = std::vector<SessionId>;

constexpr SessionId kA{1}, kB{2}, kC{3}, kD{4};

TimePoint at(int ms) { return TimePoint{} + milliseconds(ms); }

/// The rounds of trainers that joined at time 0.
SyncRounds rounds(const Sessions& trainers, RoundRules rules = {}) {
  SyncRounds made(rules);
  for (SessionId session : trainers) made.join(session, at(0));
  return made;
}

/// Contributes to the open round, which stays open.
void give(SyncRounds& rounds, SessionId session, int ms) {
  const auto answer = rounds.contribute(session, rounds.number(), at(ms));
  REQUIRE(answer.contribution == Contribution::taken);
  REQUIRE_FALSE(answer.end);
}

/// Contributes to the open round, which ends.
RoundEnd complete(SyncRounds& rounds, SessionId session, int ms) {
  const auto answer = rounds.contribute(session, rounds.number(), at(ms));
  REQUIRE(answer.contribution == Contribution::taken);
  REQUIRE(answer.end);
  return *answer.end;
}

TEST_CASE("a round closes when all trainers have contributed, and the next one opens") {
  SyncRounds sync = rounds({kA, kB, kC});
  for (uint64_t round = 0; round < 3; round++) {
    CHECK(sync.number() == round);
    give(sync, kC, 1);
    give(sync, kA, 2);
    const RoundEnd end = complete(sync, kB, 3);
    CHECK(end.round == round);
    CHECK(end.how == How::closed);
    CHECK(end.contributors == Sessions{kA, kB, kC});
    CHECK(end.missing.empty());
  }
}

TEST_CASE("a round lasts from the end of the previous one, the first one from the first join") {
  const auto lasts = [](const RoundEnd& end, double seconds) {
    return std::abs(end.seconds - seconds) < 1e-9;
  };
  SyncRounds sync{RoundRules()};
  sync.join(kA, at(5));
  sync.join(kB, at(10));
  give(sync, kA, 20);
  CHECK(lasts(complete(sync, kB, 35), 0.03));
  give(sync, kA, 40);
  CHECK(lasts(complete(sync, kB, 135), 0.1));
  sync.leave(kA, at(200));
  sync.leave(kB, at(300));
  sync.join(kC, at(1000));  // no trainer was joined meanwhile
  CHECK(lasts(complete(sync, kC, 1004), 0.004));
}

TEST_CASE("contributions that do not belong to the round are classified") {
  SyncRounds sync = rounds({kA, kB});
  CHECK(sync.contribute(kC, 0, at(0)).contribution == Contribution::notJoined);
  CHECK(sync.contribute(kA, 1, at(0)).contribution == Contribution::ahead);
  give(sync, kA, 1);
  CHECK(sync.contribute(kA, 0, at(1)).contribution == Contribution::repeated);
  complete(sync, kB, 2);
  CHECK(sync.contribute(kA, 0, at(3)).contribution == Contribution::late);
  CHECK(sync.contributions() == 0);
}

TEST_CASE("with backup trainers the first N of N + b close a round") {
  SyncRounds sync = rounds({kA, kB, kC, kD}, {.backupTrainers = 1});
  give(sync, kD, 1);
  give(sync, kA, 2);
  const RoundEnd end = complete(sync, kB, 3);
  CHECK(end.contributors == Sessions{kA, kB, kD});
  CHECK(end.missing == Sessions{kC});
  CHECK(sync.contribute(kC, 0, at(4)).contribution == Contribution::late);
  // The slow one may be the first of the next round.
  give(sync, kC, 5);
  give(sync, kB, 6);
  CHECK(complete(sync, kA, 7).missing == Sessions{kD});
}

TEST_CASE("a round closes a grace period after its quorum, or when no trainer is missing") {
  SyncRounds sync = rounds({kA, kB, kC}, {.quorum = 2, .grace = milliseconds(100)});
  give(sync, kA, 5);
  CHECK_FALSE(sync.deadline());
  CHECK_FALSE(sync.closingUntil());
  give(sync, kB, 20);
  CHECK(sync.closingUntil() == at(120));
  CHECK(sync.deadline() == at(120));
  CHECK_FALSE(sync.tick(at(119)));
  const auto end = sync.tick(at(121));
  REQUIRE(end);
  CHECK(end->how == How::closed);
  CHECK(end->contributors == Sessions{kA, kB});
  CHECK(end->missing == Sessions{kC});
  CHECK(std::abs(end->graceSeconds - 0.101) < 1e-9);
  CHECK_FALSE(sync.closingUntil());
  give(sync, kC, 130);
  give(sync, kB, 140);
  const RoundEnd whole = complete(sync, kA, 150);
  CHECK(whole.missing.empty());
  CHECK(std::abs(whole.graceSeconds - 0.01) < 1e-9);
}

TEST_CASE("if an earlier daemon started the run, trainers that are done are not waited for") {
  const auto restarted = [](RoundRules rules, uint32_t before = 0) {
    SyncRounds made(rules);
    made.startWithin(milliseconds(100), before);
    return made;
  };
  SyncRounds sync = restarted({.startTrainers = 3});
  CHECK_FALSE(sync.deadline());
  sync.join(kA, at(50));
  CHECK(sync.deadline() == at(150));
  give(sync, kA, 60);
  CHECK_FALSE(sync.tick(at(149)));
  const auto end = sync.tick(at(150));
  REQUIRE(end);
  CHECK(end->contributors == Sessions{kA});
  CHECK(complete(sync, kA, 160).how == How::closed);

  SyncRounds all = restarted({.startTrainers = 2});
  all.join(kA, at(0));
  give(all, kA, 1);
  all.join(kB, at(2));
  CHECK(all.started());
  CHECK(complete(all, kB, 3).contributors == Sessions{kA, kB});

  // The first round takes as many trainers as took part in the previous daemon's newest one.
  SyncRounds back = restarted({}, 3);
  back.join(kA, at(0));
  give(back, kA, 1);
  back.join(kB, at(2));
  give(back, kB, 3);
  CHECK(back.joinsNeeded() == 1);
  back.join(kC, at(50));
  CHECK(complete(back, kC, 60).contributors == Sessions{kA, kB, kC});

  SyncRounds fewer = restarted({}, 3);
  fewer.join(kA, at(0));
  give(fewer, kA, 1);
  const auto alone = fewer.tick(at(100));
  REQUIRE(alone);
  CHECK(alone->contributors == Sessions{kA});

  // Without a grace rule a quorum is needed, for however long.
  SyncRounds two = restarted({.quorum = 2, .startTrainers = 3});
  two.join(kA, at(0));
  give(two, kA, 1);
  CHECK_FALSE(two.tick(at(1000)));
  CHECK_FALSE(two.join(kB, at(1001)));
  CHECK(complete(two, kB, 1002).contributors == Sessions{kA, kB});

  SyncRounds grace = restarted({.quorum = 2, .startTrainers = 3, .grace = milliseconds(10)});
  grace.join(kA, at(0));
  give(grace, kA, 1);
  REQUIRE(grace.tick(at(100)));
}

TEST_CASE("a measured grace period is as long as the slowest of the missing trainers has taken") {
  SyncRounds sync =
      rounds({kA, kB, kC, kD}, {.quorum = 2, .grace = milliseconds(1000), .graceMeasured = true});
  const auto contributes = [&](SessionId session, int ms) {
    sync.gradientArrived(session, at(ms));
    return sync.contribute(session, sync.number(), at(ms));
  };
  // No trainer was missing before.
  contributes(kA, 0);
  contributes(kB, 0);
  CHECK(sync.closingUntil() == at(1000));
  contributes(kC, 10);
  CHECK(contributes(kD, 20).end);
  // D took 20 ms, half of which stands for the unknown deviation.
  contributes(kA, 200);
  contributes(kB, 200);
  CHECK(sync.closingUntil() == at(260));
  contributes(kD, 220);
  CHECK(contributes(kC, 230).end);
  // Only D is missing, which took 20 ms both times: 20 + 4 · 7.5.
  sync.leave(kB, at(300));
  contributes(kA, 400);
  contributes(kC, 400);
  CHECK(sync.closingUntil() == at(450));
  const auto end = sync.tick(at(450));
  REQUIRE(end);
  CHECK(end->missing == Sessions{kD});
  // D's late push, after 80 ms, updates its grace period: 27.5 + 4 · 20.625.
  sync.gradientArrived(kD, at(480));
  CHECK(sync.contribute(kD, end->round, at(480)).contribution == Contribution::late);
  contributes(kA, 500);
  contributes(kC, 500);
  CHECK(sync.closingUntil() == at(610));
}

TEST_CASE("a grace period of zero closes a round with its quorum, and never the first one before its start") {
  SyncRounds sync = rounds({kA, kB, kC}, {.quorum = 2, .startTrainers = 4, .grace = milliseconds(0)});
  give(sync, kA, 1);
  give(sync, kB, 2);
  CHECK_FALSE(sync.tick(at(1000)));
  const auto end = sync.join(kD, at(1001));
  REQUIRE(end);
  CHECK(end->contributors == Sessions{kA, kB});
  give(sync, kC, 1002);
  CHECK(complete(sync, kD, 1003).contributors == Sessions{kC, kD});
}

TEST_CASE("the earlier of grace period and timeout ends a round") {
  SyncRounds sync = rounds(
      {kA, kB, kC},
      {.quorum = 2, .timeout = milliseconds(50), .grace = milliseconds(100), .proceedOnTimeout = false});
  give(sync, kA, 0);
  give(sync, kB, 10);
  const auto failed = sync.tick(at(50));
  REQUIRE(failed);
  CHECK(failed->how == How::timedOut);
  SyncRounds other = rounds(
      {kA, kB, kC},
      {.quorum = 2, .timeout = milliseconds(500), .grace = milliseconds(100), .proceedOnTimeout = false});
  give(other, kA, 0);
  give(other, kB, 10);
  const auto closed = other.tick(at(110));
  REQUIRE(closed);
  CHECK(closed->how == How::closed);
}

TEST_CASE("in any schedule a round with a grace period closes neither before its quorum nor long after it") {
  for (uint32_t seed = 0; seed < 1000; seed++) {
    std::mt19937 random(seed);
    const Sessions trainers = {kA, kB, kC, kD};
    const uint32_t quorum = 1 + random() % 4;
    SyncRounds sync = rounds(trainers, {.quorum = quorum, .grace = milliseconds(30)});
    size_t given = 0;
    std::optional<int> quorumAt;
    for (int ms = 1; ms < 400; ms++) {
      const uint64_t before = sync.number();
      std::optional<RoundEnd> end = sync.tick(at(ms));
      if (!end && random() % 10 == 0) {
        auto answer = sync.contribute(trainers[random() % 4], before, at(ms));
        given += answer.contribution == Contribution::taken;
        if (given == quorum && !quorumAt) quorumAt = ms;
        end = answer.end;
      }
      if (!end) {
        if (quorumAt) REQUIRE(ms < *quorumAt + 30);
        continue;
      }
      REQUIRE(end->how == How::closed);
      REQUIRE(end->contributors.size() == given);
      REQUIRE(given >= quorum);
      REQUIRE(sync.number() == before + 1);
      given = 0;
      quorumAt.reset();
    }
  }
}

TEST_CASE("in any schedule no trainer waits longer than measured for the missing ones, nor than the limit") {
  constexpr milliseconds kMost(30);
  uint64_t shorter = 0, over = 0;
  for (uint32_t seed = 0; seed < 1000; seed++) {
    std::mt19937 random(seed);
    const Sessions trainers = {kA, kB, kC, kD};
    // Some are silent for long, others are a little late.
    std::vector<uint32_t> chances;
    for (size_t i = 0; i < trainers.size(); i++) chances.push_back(2 + random() % 60);
    const uint32_t quorum = 1 + random() % 3;
    SyncRounds sync = rounds(trainers, {.quorum = quorum, .grace = kMost, .graceMeasured = true});
    MeasuredGrace measured(kMost);  // fed the same data
    std::set<SessionId> given;
    std::optional<TimePoint> until;
    for (int ms = 1; ms < 400; ms++) {
      std::optional<RoundEnd> end = sync.tick(at(ms));
      if (end) {
        over++;
        REQUIRE(until);
        REQUIRE(at(ms) == std::chrono::ceil<milliseconds>(*until));
      }
      for (size_t i = 0; !end && i < trainers.size(); i++) {
        if (random() % chances[i] != 0) continue;
        sync.gradientArrived(trainers[i], at(ms));
        measured.gradientArrived(trainers[i], at(ms));
        const auto answer = sync.contribute(trainers[i], sync.number(), at(ms));
        if (answer.contribution == Contribution::taken) given.insert(trainers[i]);
        end = answer.end;
        if (until || given.size() < quorum) continue;
        MeasuredGrace::Duration longest{};
        for (const SessionId one : trainers) {
          if (given.contains(one)) continue;
          measured.missing(one, at(ms));
          longest = std::max(longest, measured.of(one));
        }
        until = at(ms) + longest;
        REQUIRE(longest <= kMost);
        shorter += longest < kMost;
        if (end) {
          REQUIRE((end->missing.empty() || longest == MeasuredGrace::Duration()));
        } else {
          REQUIRE(sync.closingUntil() == until);
        }
      }
      if (end) {
        REQUIRE(std::set<SessionId>(end->contributors.begin(), end->contributors.end()) == given);
        given.clear();
        until.reset();
      } else if (until) {
        REQUIRE(at(ms) < *until);
      }
    }
  }
  CHECK(shorter > 0);  // the schedules cover the cases under test
  CHECK(over > 0);
}

TEST_CASE("with a grace period a round closes with all remaining trainers if there is no quorum") {
  SyncRounds sync = rounds({kA, kB, kC}, {.quorum = 3, .least = 2, .grace = milliseconds(100)});
  give(sync, kA, 1);
  CHECK_FALSE(sync.leave(kC, at(2)));
  CHECK(sync.joinsNeeded() == 0);
  const auto two = sync.contribute(kB, 0, at(3)).end;
  REQUIRE(two);
  CHECK(two->how == How::closed);
  CHECK(two->contributors == Sessions{kA, kB});
  // One alone is below the minimum of the rules.
  give(sync, kA, 4);
  const auto alone = sync.leave(kB, at(5));
  REQUIRE(alone);
  CHECK(alone->how == How::quorumLost);
  // A trainer that rejoins in the middle of such a round is in it.
  sync.join(kB, at(6));
  give(sync, kA, 7);
  sync.join(kC, at(8));
  CHECK(sync.waitingFor().size() == 2);
}

TEST_CASE("as many backup trainers as trainers still leave one to wait for") {
  SyncRounds sync = rounds({kA, kB}, {.backupTrainers = 5});
  CHECK(complete(sync, kB, 1).contributors == Sessions{kB});
}

TEST_CASE("a departed trainer is not waited for, and the last departure may end the round") {
  SyncRounds sync = rounds({kA, kB, kC});
  give(sync, kA, 1);
  CHECK_FALSE(sync.leave(kB, at(2)));
  const auto end = sync.leave(kC, at(3));
  REQUIRE(end);
  CHECK(end->how == How::closed);
  CHECK(end->contributors == Sessions{kA});
  CHECK_FALSE(sync.leave(kC, at(4)));
  CHECK(sync.present() == 1);
}

TEST_CASE("the contribution of a trainer that has left stands") {
  SyncRounds sync = rounds({kA, kB});
  give(sync, kA, 1);
  CHECK_FALSE(sync.leave(kA, at(2)));
  CHECK(complete(sync, kB, 3).contributors == Sessions{kA, kB});
}

TEST_CASE("when all have departed a round with a quorum closes, one without fails, an empty one stays") {
  SyncRounds closes = rounds({kA, kB});
  give(closes, kA, 1);
  CHECK_FALSE(closes.leave(kA, at(2)));
  auto end = closes.leave(kB, at(3));
  REQUIRE(end);
  CHECK(end->how == How::closed);

  SyncRounds fails = rounds({kA, kB}, {.quorum = 2, .timeout = milliseconds(1000)});
  give(fails, kA, 1);
  CHECK_FALSE(fails.leave(kA, at(2)));
  end = fails.leave(kB, at(3));
  REQUIRE(end);
  CHECK(end->how == How::quorumLost);
  CHECK(fails.number() == 0);

  SyncRounds empty = rounds({kA});
  CHECK_FALSE(empty.leave(kA, at(1)));
  CHECK(empty.number() == 0);
}

TEST_CASE("a trainer that joins before the first contribution is in the round, later ones in the next") {
  SyncRounds sync = rounds({kA});
  sync.join(kB, at(1));
  give(sync, kA, 2);
  sync.join(kC, at(3));
  CHECK(complete(sync, kB, 4).contributors == Sessions{kA, kB});
  give(sync, kA, 5);
  give(sync, kB, 6);
  CHECK(complete(sync, kC, 7).contributors == Sessions{kA, kB, kC});
}

TEST_CASE("the contribution of a trainer that just joined counts though it is not waited for") {
  SyncRounds sync = rounds({kA, kB});
  give(sync, kA, 1);
  sync.join(kC, at(2));
  give(sync, kC, 3);
  CHECK(complete(sync, kB, 4).contributors == Sessions{kA, kB, kC});
}

TEST_CASE("an unreachable quorum fails the round immediately without a timeout") {
  SyncRounds sync = rounds({kA, kB, kC}, {.quorum = 3});
  give(sync, kA, 1);
  const auto end = sync.leave(kB, at(2));
  REQUIRE(end);
  CHECK(end->how == How::quorumLost);
  CHECK(end->contributors == Sessions{kA});
  CHECK(end->missing == Sessions{kC});
  CHECK(complete(sync, kA, 3).how == How::quorumLost);
}

TEST_CASE("with a timeout a trainer that joins may restore the quorum") {
  SyncRounds sync = rounds({kA, kB}, {.quorum = 2, .timeout = milliseconds(100)});
  give(sync, kA, 10);
  CHECK_FALSE(sync.leave(kB, at(20)));
  CHECK(sync.joinsNeeded() == 1);
  CHECK(sync.waitingFor().empty());
  SECTION("in time") {
    sync.join(kC, at(50));
    CHECK(sync.joinsNeeded() == 0);
    CHECK(sync.waitingFor() == std::vector<Awaited>{{kC, at(50)}});
    CHECK(complete(sync, kC, 60).how == How::closed);
  }
  SECTION("or not") {
    CHECK_FALSE(sync.tick(at(109)));
    const auto end = sync.tick(at(110));
    REQUIRE(end);
    CHECK(end->how == How::quorumLost);
  }
}

TEST_CASE("a waiting trainer is added to the round when the quorum needs it") {
  SyncRounds sync = rounds({kA, kB}, {.quorum = 2});
  give(sync, kA, 1);
  sync.join(kC, at(2));
  CHECK(sync.waitingFor() == std::vector<Awaited>{{kB, at(1)}});
  CHECK_FALSE(sync.leave(kB, at(3)));
  CHECK(sync.waitingFor() == std::vector<Awaited>{{kC, at(3)}});
  CHECK(complete(sync, kC, 4).contributors == Sessions{kA, kC});
}

TEST_CASE("the timeout counts from the first contribution and proceeds with a quorum") {
  SyncRounds sync = rounds({kA, kB, kC}, {.quorum = 2, .timeout = milliseconds(100)});
  CHECK_FALSE(sync.deadline());
  CHECK_FALSE(sync.tick(at(5000)));
  give(sync, kA, 6000);
  CHECK(sync.deadline() == at(6100));
  give(sync, kC, 6050);
  CHECK_FALSE(sync.tick(at(6099)));
  const auto end = sync.tick(at(6100));
  REQUIRE(end);
  CHECK(end->how == How::closed);
  CHECK(end->contributors == Sessions{kA, kC});
  CHECK(end->missing == Sessions{kB});
  CHECK_FALSE(sync.deadline());
  CHECK(sync.number() == 1);
}

TEST_CASE("a timeout fails the round without a quorum, or if the rules say so") {
  const bool proceed = GENERATE(true, false);
  const uint32_t quorum = proceed ? 2 : 1;
  SyncRounds sync =
      rounds({kA, kB}, {.quorum = quorum, .timeout = milliseconds(100), .proceedOnTimeout = proceed});
  give(sync, kA, 0);
  const auto end = sync.tick(at(100));
  REQUIRE(end);
  CHECK(end->how == How::timedOut);
  CHECK(end->contributors == Sessions{kA});
  CHECK(end->missing == Sessions{kB});
  // Nothing was applied: the same round again, and the slow one's gradient is valid for it.
  CHECK(sync.number() == 0);
  give(sync, kB, 110);
  CHECK(complete(sync, kA, 120).contributors == Sessions{kA, kB});
}

TEST_CASE("no round closes before the start trainers have joined") {
  SyncRounds sync = rounds({kA}, {.startTrainers = 3});
  give(sync, kA, 1);
  CHECK(sync.joinsNeeded() == 2);
  sync.join(kB, at(2));
  give(sync, kB, 3);
  CHECK(sync.joinsNeeded() == 1);
  sync.join(kC, at(4));
  CHECK(sync.joinsNeeded() == 0);
  CHECK(sync.waitingFor() == std::vector<Awaited>{{kC, at(4)}});
  CHECK(complete(sync, kC, 5).contributors == Sessions{kA, kB, kC});
  // After that it is no longer a condition.
  sync.leave(kC, at(6));
  give(sync, kA, 7);
  CHECK(complete(sync, kB, 8).how == How::closed);
}

TEST_CASE("the trainer that completes the start may close the round by joining") {
  SyncRounds sync = rounds({kA}, {.backupTrainers = 1, .startTrainers = 2});
  give(sync, kA, 1);
  const auto end = sync.join(kB, at(2));
  REQUIRE(end);
  CHECK(end->how == How::closed);
  CHECK(end->missing == Sessions{kB});
}

TEST_CASE("the first round waits for a quorum to join, and no later one does") {
  SyncRounds sync = rounds({kA, kB}, {.quorum = 3});
  give(sync, kA, 1);
  give(sync, kB, 2);
  CHECK(sync.joinsNeeded() == 1);
  sync.join(kC, at(3));
  CHECK(complete(sync, kC, 4).how == How::closed);
  give(sync, kA, 5);
  const auto end = sync.leave(kB, at(6));
  REQUIRE(end);
  CHECK(end->how == How::quorumLost);
}

TEST_CASE("rounds that follow others wait for a joined quorum, and not for the start trainers") {
  SyncRounds sync({.quorum = 2, .startTrainers = 3});
  sync.startWithQuorum();
  sync.join(kA, at(0));
  give(sync, kA, 1);
  CHECK(sync.joinsNeeded() == 1);
  sync.join(kB, at(2));
  CHECK(complete(sync, kB, 3).how == How::closed);
}

TEST_CASE("the timeout of the first round counts from the start") {
  SyncRounds sync = rounds({kA}, {.startTrainers = 2, .timeout = milliseconds(100)});
  give(sync, kA, 0);
  CHECK_FALSE(sync.deadline());
  CHECK_FALSE(sync.tick(at(1000)));
  CHECK_FALSE(sync.join(kB, at(2000)));
  CHECK(sync.deadline() == at(2100));
  CHECK_FALSE(sync.tick(at(2099)));
  const auto end = sync.tick(at(2100));
  REQUIRE(end);
  CHECK(end->how == How::closed);
  CHECK(end->missing == Sessions{kB});
}

TEST_CASE("the start no longer waits for a departed trainer") {
  SyncRounds alone = rounds({kA}, {.startTrainers = 2});
  give(alone, kA, 0);
  const auto left = alone.leave(kA, at(1));
  REQUIRE(left);
  CHECK(left->how == How::quorumLost);
}

TEST_CASE("the missing trainers are reported from the moment when one waits") {
  SyncRounds sync = rounds({kA, kB, kC});
  CHECK(sync.waitingFor().empty());
  give(sync, kB, 10);
  CHECK(sync.waitingFor() == std::vector<Awaited>{{kA, at(10)}, {kC, at(10)}});
  give(sync, kC, 20);
  CHECK(sync.waitingFor() == std::vector<Awaited>{{kA, at(10)}});
  complete(sync, kA, 30);
  CHECK(sync.waitingFor().empty());
}

}  // namespace
}  // namespace psd::sync_rounds_test
