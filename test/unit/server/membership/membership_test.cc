#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/types/bridge.h"
#include "server/membership/model_initialization.h"
#include "server/membership/roster.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::membership_test {
namespace {

using Catch::Matchers::Contains;
using testing::Random;

Candidate trainer(uint32_t rank, uint32_t worldSize) {
  return {Rank{rank}, worldSize, "node-7", 1000 + rank};
}

SessionId joined(Roster& roster, uint32_t rank, uint32_t worldSize) {
  auto session = roster.join(trainer(rank, worldSize));
  PSD_REQUIRE_OK(session);
  return *session;
}

Error refusal(Roster& roster, uint32_t rank, uint32_t worldSize) {
  const size_t before = roster.present();
  auto session = roster.join(trainer(rank, worldSize));
  REQUIRE_FALSE(session.ok());
  CHECK(roster.present() == before);
  return session.error();
}

TEST_CASE("a roster takes each rank once, in any order") {
  Roster roster;
  CHECK(roster.worldSize() == 0);
  const SessionId two = joined(roster, 2, 3), zero = joined(roster, 0, 3), one = joined(roster, 1, 3);
  CHECK(two < zero);
  CHECK(zero < one);
  CHECK(roster.present() == 3);
  CHECK(roster.worldSize() == 3);
  CHECK(roster.sessions().at(one).rank == Rank{1});
  CHECK(roster.sessions().at(one).host == "node-7");
}

TEST_CASE("a bridge joins beside the trainers, and no world size counts it") {
  Roster roster(2);
  Candidate bridge{.rank = kBridgeRank, .host = "node-7", .pid = 9, .incarnation = 5, .bridges = true};
  PSD_REQUIRE_OK(roster.place(bridge));
  const auto session = roster.join(bridge);
  PSD_REQUIRE_OK(session);
  CHECK(roster.hasBridge());
  CHECK(roster.trainers() == 0);
  CHECK_FALSE(roster.everyoneDone());
  const SessionId zero = joined(roster, 0, 2), one = joined(roster, 1, 2);
  CHECK(roster.full());
  CHECK(roster.trainers() == 2);
  CHECK(roster.holderOf(kBridgeRank) == *session);
  Candidate other = bridge;
  other.incarnation = 6;
  const auto refused = roster.join(other);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::rankTaken);
  roster.depart(zero, Departure::left);
  CHECK_FALSE(roster.everyoneDone());
  roster.depart(one, Departure::lost);
  CHECK(roster.everyoneDone());
  CHECK(roster.lostCount() == 1);
  CHECK(roster.departed() == std::set<Rank>{Rank{0}, Rank{1}});
  roster.depart(*session, Departure::lost);
  CHECK(roster.lostCount() == 1);
  PSD_REQUIRE_OK(roster.join(other));
}

TEST_CASE("a taken rank is rejected and its holder named") {
  Roster roster;
  joined(roster, 1, 2);
  const Error error = refusal(roster, 1, 2);
  CHECK(error.code == ErrorCode::rankTaken);
  CHECK(error.message == "rank 1 is taken by process 1001 on node-7");
}

TEST_CASE("a rank is free again once its trainer has left or was lost") {
  Roster roster;
  const SessionId first = joined(roster, 0, 2);
  roster.depart(first, Departure::left);
  const SessionId second = joined(roster, 0, 2);
  CHECK(second != first);
  roster.depart(second, Departure::lost);
  CHECK(joined(roster, 0, 2) != second);
  CHECK(roster.lostCount() == 1);
}

TEST_CASE("a trainer whose rank another has had since does not get it back, at this or another daemon") {
  Roster roster;
  Candidate old = trainer(0, 2), successor = old;
  old.incarnation = 7;
  old.lastDaemon = 1;
  successor.incarnation = 8;
  const auto replacement = roster.join(successor);
  PSD_REQUIRE_OK(replacement);
  roster.depart(*replacement, Departure::left);
  CHECK(roster.join(old).message() == "rank 0 was taken over by process 1000 on node-7");
  successor.lastDaemon = 1;
  PSD_REQUIRE_OK(roster.join(successor));
}

TEST_CASE("a process's incarnation is useless to another caller") {
  Roster roster;
  Candidate owner = trainer(0, 2);
  owner.incarnation = 7;
  owner.owner = "token 'a'";
  const auto session = roster.join(owner);
  PSD_REQUIRE_OK(session);
  Candidate thief = owner, anonymous = owner;
  thief.owner = "token 'b'";
  anonymous.owner = "";
  CHECK(roster.mayJoin(thief).error().code == ErrorCode::forbidden);
  CHECK(roster.mayJoin(owner).ok());
  CHECK(roster.mayJoin(anonymous).ok());  // without `auth` the incarnation is the only secret
  roster.setOwner(*session, "");
  CHECK(roster.sessions().at(*session).owner == "token 'a'");
  thief.anyRank = owner.anyRank = true;
  PSD_REQUIRE_OK(roster.place(thief));
  CHECK(thief.rank == Rank{1});
  PSD_REQUIRE_OK(roster.place(owner));
  CHECK(owner.rank == Rank{0});
  roster.depart(*session, Departure::lost);  // it may rejoin
  thief.rank = Rank{0};
  CHECK(roster.join(thief).error().code == ErrorCode::forbidden);
  thief.incarnation = 8;
  CHECK(roster.join(thief).ok());
}

TEST_CASE("a session without an owner belongs to the first named caller") {
  Roster roster;
  Candidate first = trainer(0, 1);
  first.incarnation = 7;
  const auto session = roster.join(first);
  PSD_REQUIRE_OK(session);
  roster.setOwner(*session, "user 1000");
  first.owner = "user 1001";
  CHECK(roster.mayJoin(first).error().code == ErrorCode::forbidden);
}

TEST_CASE("a loss reported after a leave, or twice, changes nothing") {
  Roster roster;
  const SessionId left = joined(roster, 0, 2);
  roster.depart(left, Departure::left);
  const SessionId next = joined(roster, 0, 2);
  roster.depart(left, Departure::lost);
  CHECK(roster.lostCount() == 0);
  CHECK(roster.sessions().contains(next));
  roster.depart(next, Departure::lost);
  roster.depart(next, Departure::lost);
  CHECK(roster.lostCount() == 1);
  CHECK(roster.present() == 0);
}

TEST_CASE("a rank beyond the world size is rejected") {
  Roster roster;
  const Error error = refusal(roster, 2, 2);
  CHECK(error.code == ErrorCode::invalidArgument);
  CHECK(error.message == "rank 2 is not below the world size 2");
  CHECK(roster.worldSize() == 0);  // a rejected join decides nothing
}

TEST_CASE("trainers agree on the world size while any has joined") {
  Roster roster;
  const SessionId first = joined(roster, 0, 2);
  const Error error = refusal(roster, 1, 3);
  CHECK(error.code == ErrorCode::worldSizeMismatch);
  CHECK(error.message == "rank 1 has a world size of 3, but the joined trainers have 2");
  roster.depart(first, Departure::left);
  joined(roster, 1, 3);
  CHECK(roster.worldSize() == 3);
}

TEST_CASE("a configured world size is fixed from the start") {
  Roster roster(2);
  CHECK(refusal(roster, 0, 3).message == "rank 0 has a world size of 3, but the daemon's config says 2");
  roster.depart(joined(roster, 0, 2), Departure::left);
  CHECK(refusal(roster, 0, 3).code == ErrorCode::worldSizeMismatch);
}

TEST_CASE("all trainers are done when every rank has joined and all have left") {
  Roster roster;
  CHECK_FALSE(roster.everyoneDone());
  const SessionId zero = joined(roster, 0, 2);
  roster.depart(zero, Departure::left);
  CHECK_FALSE(roster.everyoneDone());  // rank 1 has not joined yet
  const SessionId one = joined(roster, 1, 2);
  CHECK_FALSE(roster.everyoneDone());
  roster.depart(one, Departure::lost);
  CHECK(roster.everyoneDone());
}

TEST_CASE("ranks that were done under a previous daemon count until they join again") {
  Roster roster;
  REQUIRE(roster.recall(2, {Rank{0}}));
  CHECK(roster.departed() == std::set{Rank{0}});
  CHECK_FALSE(roster.everyoneDone());
  const SessionId one = joined(roster, 1, 2), zero = joined(roster, 0, 2);
  CHECK(roster.departed().empty());
  roster.depart(one, Departure::left);
  CHECK_FALSE(roster.everyoneDone());
  roster.depart(zero, Departure::lost);
  CHECK(roster.departed() == std::set{Rank{0}, Rank{1}});
  CHECK(roster.everyoneDone());

  Roster all;
  REQUIRE(all.recall(2, {Rank{0}, Rank{1}}));
  CHECK(all.everyoneDone());
}

TEST_CASE("what was saved of another world size is ignored") {
  Roster configured(3);
  CHECK_FALSE(configured.recall(2, {Rank{0}}));
  CHECK(configured.departed().empty());
  CHECK(configured.worldSize() == 3);

  Roster open;
  REQUIRE(open.recall(2, {Rank{0}}));
  open.depart(joined(open, 1, 3), Departure::left);
  CHECK(open.departed() == std::set{Rank{1}});
}

TEST_CASE("a trainer disconnected because the daemon ends is not done") {
  Roster roster(2);
  const SessionId zero = joined(roster, 0, 2), one = joined(roster, 1, 2);
  roster.depart(zero, Departure::left);
  roster.depart(one, Departure::daemonEnding);
  CHECK(roster.departed() == std::set{Rank{0}});
  CHECK_FALSE(roster.everyoneDone());
  CHECK(roster.lostCount() == 0);
}

TEST_CASE("ranks of another world size do not count") {
  Roster roster;
  roster.depart(joined(roster, 0, 2), Departure::left);
  roster.depart(joined(roster, 1, 3), Departure::left);
  CHECK_FALSE(roster.everyoneDone());
  roster.depart(joined(roster, 0, 3), Departure::left);
  roster.depart(joined(roster, 2, 3), Departure::left);
  CHECK(roster.everyoneDone());
}

TEST_CASE("a trainer without a rank gets the lowest free one") {
  Roster roster(3, 1);
  Candidate any = trainer(77, 0);
  any.anyRank = true;
  const auto placed = [&](Candidate candidate) {
    PSD_REQUIRE_OK(roster.place(candidate));
    CHECK(candidate.worldSize == 3);
    PSD_REQUIRE_OK(roster.join(candidate));
    return candidate.rank;
  };
  CHECK(placed(any) == Rank{0});
  const SessionId one = joined(roster, 1, 3);
  any.incarnation = 9;
  CHECK(placed(any) == Rank{2});
  CHECK(roster.full());

  Candidate again = any;
  PSD_REQUIRE_OK(roster.place(again));
  CHECK(again.rank == Rank{2});  // the same process, which has it
  any.incarnation = 10;
  const Status refused = roster.place(any);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::rankTaken);
  CHECK(refused.message() == "all 3 ranks are taken");

  roster.depart(one, Departure::lost);
  CHECK_FALSE(roster.full());
  CHECK(placed(any) == Rank{1});
}

TEST_CASE("an omitted world size is that of the configuration or of the joined trainers") {
  Roster open;
  Candidate any = trainer(0, 0);
  CHECK_THAT(open.place(any).message(),
             Contains("rank 0 gives no world size") && Contains("world_size= of Python, or WORLD_SIZE"));
  joined(open, 1, 2);
  PSD_REQUIRE_OK(open.place(any));
  CHECK(any.worldSize == 2);
  CHECK(any.rank == Rank{0});
}

TEST_CASE("a trainer that omits rank and world size, like all others, is a world of its own") {
  Roster open;
  Candidate alone = trainer(7, 0);
  alone.anyRank = true;
  alone.incarnation = 1;
  Candidate second = alone, late = alone;
  second.incarnation = 2;
  PSD_REQUIRE_OK(open.place(alone));
  CHECK(alone.rank == Rank{0});
  CHECK(alone.worldSize == 1);
  const auto session = open.join(alone);
  PSD_REQUIRE_OK(session);
  const Status taken = open.place(second);
  CHECK(taken.error().code == ErrorCode::rankTaken);
  CHECK_THAT(taken.message(), Contains("the only rank is taken") && Contains("WORLD_SIZE"));
  open.depart(*session, Departure::left);
  CHECK(open.everyoneDone());
  // A world of two follows, and after it again one of a single trainer.
  const SessionId one = joined(open, 1, 2);
  second.worldSize = 0;
  PSD_REQUIRE_OK(open.place(second));
  CHECK(second.worldSize == 2);
  open.depart(one, Departure::left);
  PSD_REQUIRE_OK(open.place(late));
  CHECK(late.worldSize == 1);
}

TEST_CASE("a trainer that omits everything does not replace the world of trainers that may still rejoin") {
  Roster again;
  REQUIRE(again.recall(3, {}));
  again.keep({Rank{0}, Rank{2}});
  Candidate any = trainer(7, 0);
  any.anyRank = true;
  PSD_REQUIRE_OK(again.place(any));
  CHECK(any.worldSize == 3);
  CHECK(any.rank == Rank{1});
}

TEST_CASE("if trainers may come and go, the minimum number of ranks makes the world complete") {
  Roster roster(8, 2);
  CHECK(roster.worldSize() == 8);
  CHECK(roster.worldSizeMin() == 2);
  CHECK(refusal(roster, 0, 2).code == ErrorCode::worldSizeMismatch);
  roster.depart(joined(roster, 5, 8), Departure::left);
  roster.depart(joined(roster, 5, 8), Departure::left);
  CHECK_FALSE(roster.everyoneDone());
  const SessionId other = joined(roster, 0, 8);
  CHECK_FALSE(roster.everyoneDone());
  roster.depart(other, Departure::lost);
  CHECK(roster.everyoneDone());
}

using Role = ModelInitialization::Role;

TEST_CASE("the first trainer is the initializer, the others wait for it") {
  ModelInitialization start;
  CHECK(start.join(SessionId{1}) == Role::initialize);
  CHECK(start.join(SessionId{2}) == Role::wait);
  CHECK_FALSE(start.ready());
  CHECK(start.initializer() == SessionId{1});
  CHECK_FALSE(start.complete(SessionId{2}));
  CHECK_FALSE(start.complete());
  CHECK(start.complete(SessionId{1}));
  CHECK(start.complete());
  CHECK_FALSE(start.ready());
  CHECK_FALSE(start.initializer());
  CHECK(start.join(SessionId{3}) == Role::wait);
  CHECK(start.roleOf(SessionId{1}) == Role::wait);
  start.open();
  CHECK(start.ready());
  CHECK(start.join(SessionId{4}) == Role::go);
  CHECK(start.roleOf(SessionId{3}) == Role::go);
  CHECK_FALSE(start.complete(SessionId{1}));  // only once
}

TEST_CASE("values present from the start need no initializer") {
  ModelInitialization start(true);
  CHECK(start.ready());
  CHECK(start.join(SessionId{1}) == Role::go);
  CHECK_FALSE(start.initializer());
  CHECK_FALSE(start.depart(SessionId{1}));
}

TEST_CASE("when the initializer departs the next in line takes over") {
  ModelInitialization start;
  start.join(SessionId{1});
  start.join(SessionId{2});
  start.join(SessionId{3});
  start.join(SessionId{4});
  CHECK_FALSE(start.depart(SessionId{2}));
  CHECK(start.depart(SessionId{1}) == SessionId{3});
  CHECK_FALSE(start.complete(SessionId{1}));
  CHECK_FALSE(start.depart(SessionId{1}));
  CHECK(start.depart(SessionId{3}) == SessionId{4});
  CHECK_FALSE(start.depart(SessionId{4}));
  CHECK_FALSE(start.initializer());
  CHECK(start.join(SessionId{5}) == Role::initialize);
}

TEST_CASE("once the values are complete there is no further initializer") {
  ModelInitialization start;
  start.join(SessionId{1});
  start.join(SessionId{2});
  REQUIRE(start.complete(SessionId{1}));
  CHECK_FALSE(start.depart(SessionId{1}));  // a waiting trainer only waits for them to be saved
  start.open();
  CHECK_FALSE(start.depart(SessionId{2}));
  CHECK(start.ready());
}

/// Roster and ModelInitialization as the daemon uses them, next to a naive model of their results.
struct Schedule {
  struct Stay {
    SessionId session;
    uint32_t rank;
    bool live;
  };

  explicit Schedule(uint32_t worldSize) : worldSize(worldSize) {}

  std::vector<Stay*> live() {
    std::vector<Stay*> found;
    for (Stay& stay : stays) {
      if (stay.live) found.push_back(&stay);
    }
    return found;
  }

  void join(uint32_t rank) {
    bool taken = false;
    for (Stay* stay : live()) taken = taken || stay->rank == rank;
    const bool first = live().empty();
    auto session = roster.join(trainer(rank, worldSize));
    REQUIRE(session.ok() == !taken);
    if (taken) {
      REQUIRE(session.error().code == ErrorCode::rankTaken);
      return;
    }
    for (const Stay& stay : stays) REQUIRE(stay.session != *session);
    const Role role = start.join(*session);
    REQUIRE(role == (ready ? Role::go : first ? Role::initialize : Role::wait));
    stays.push_back({*session, rank, true});
  }

  void depart(Stay& stay, Departure how) {
    const bool brought = !ready && live().front() == &stay;
    lost += how == Departure::lost;
    roster.depart(stay.session, how);
    stay.live = false;
    const auto next = start.depart(stay.session);
    const auto left = live();
    REQUIRE(next == (brought && !left.empty() ? std::optional(left.front()->session) : std::nullopt));
  }

  void finish(const Stay& stay) {
    const auto present = live();
    const bool brings = !ready && !present.empty() && present.front() == &stay;
    REQUIRE(start.complete(stay.session) == brings);
    if (brings) start.open();
    ready = ready || brings;
  }

  void check() {
    testing::requireInvariants(roster);
    testing::requireInvariants(start);
    const auto present = live();
    REQUIRE(roster.present() == present.size());
    REQUIRE(roster.lostCount() == lost);
    std::set<uint32_t> ranks, seen;
    for (const auto& [session, candidate] : roster.sessions()) ranks.insert(candidate.rank.value);
    REQUIRE(ranks.size() == present.size());  // never two live sessions of one rank
    for (const Stay& stay : stays) seen.insert(stay.rank);
    REQUIRE(roster.everyoneDone() == (present.empty() && seen.size() == worldSize));
    // The initializer has always joined: it is the one that joined first.
    REQUIRE(start.ready() == ready);
    const bool needed = !ready && !present.empty();
    REQUIRE(start.initializer() == (needed ? std::optional(present.front()->session) : std::nullopt));
  }

  const uint32_t worldSize;
  Roster roster;
  ModelInitialization start;
  std::vector<Stay> stays;
  bool ready = false;
  uint64_t lost = 0;
};

TEST_CASE("any order of joins, leaves and losses satisfies the invariants") {
  int done = 0, handedOver = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    Schedule schedule(static_cast<uint32_t>(random.between(1, 6)));
    std::optional<SessionId> initializer;
    for (int step = 0; step < 60; step++) {
      INFO("step " << step);
      const auto live = schedule.live();
      if (live.empty() || random.oneIn(2)) {
        schedule.join(static_cast<uint32_t>(random.below(schedule.worldSize)));
      } else if (random.oneIn(12)) {
        schedule.finish(schedule.stays[random.below(schedule.stays.size())]);  // perhaps of one that departed
                                                                               // long ago
      } else {
        schedule.depart(*live[random.below(live.size())],
                        random.oneIn(2) ? Departure::left : Departure::lost);
      }
      schedule.check();
      done += schedule.roster.everyoneDone();
      const auto now = schedule.start.initializer();
      handedOver += initializer && now && now != initializer;
      initializer = now;
    }
  }
  CHECK(done > 0);  // the schedules cover the cases under test
  CHECK(handedOver > 0);
}

}  // namespace
}  // namespace psd::membership_test
