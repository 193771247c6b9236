#include <optional>
#include <string>
#include <vector>

#include "server/replica/group_state.h"
#include "test/support/catch.h"
#include "test/unit/server/group_actions_text.h"

namespace psd::replica_primary_test {
namespace {

using std::chrono::milliseconds;
using testing::text;

constexpr DaemonId kMe{7}, kOther{9}, kThird{11};

/// A primary from its first start on, and the engine's answers to it.
struct Primary {
  explicit Primary(GroupRules::Wait wait = GroupRules::Wait::standby) : state(kMe, rules(wait), now) {
    CHECK(text(state.start({}, 0, now)) == "");
    CHECK(silence(milliseconds(950)) == "");  // who served in a plan that is gone would write it now
    CHECK(silence(milliseconds(50)) == "swap 0 1:7+none");
    CHECK(text(state.swapWon({1, 1, kMe, {}}, now)) == "promote 1");
    CHECK(state.role() == GroupRole::primary);
  }
  static GroupRules rules(GroupRules::Wait wait) {
    return {milliseconds(50), milliseconds(300), milliseconds(1500), wait, milliseconds(1000)};
  }

  std::string append(uint64_t number) { return text(state.recordAppended(number, now)); }
  std::string holds(uint64_t number, DaemonId id = kOther) {
    return text(state.standbyHolds(id, number, now));
  }
  std::string subscribe(DaemonId id = kOther) { return text(state.standbySubscribed(id, now)); }
  std::string won(std::optional<DaemonId> standby) {
    return text(state.swapWon({state.plan().revision + 1, 1, kMe, standby}, now));
  }
  std::string read(uint64_t revision, std::optional<DaemonId> standby) {
    return text(state.planRead({revision, 1, kMe, standby}, now));
  }
  /// Beats pass, in which the standby says nothing. What was wanted in them.
  std::string silence(milliseconds time) { return testing::silence(state, now, time); }
  /// The standby is in the plan, of revision 2, and holds `number` records.
  void pair(uint64_t number = 0) {
    for (uint64_t i = 1; i <= number; i++) append(i);
    subscribe();
    REQUIRE(holds(number) == "swap 1 1:7+9");
    REQUIRE(won(kOther) == "in sync 9");
  }

  TimePoint now{};
  GroupState state;
};

TEST_CASE("replica, rule 9: a primary without a standby in the plan answers alone") {
  Primary primary;
  CHECK(primary.append(1) == "answer 1");
  CHECK(primary.append(2) == "answer 2");
  // One that follows but is not in the plan is not waited for.
  CHECK(primary.subscribe() == "");
  CHECK(primary.append(3) == "answer 3");
  // It is let go where it stands still, since what is not on its way to it yet may hold pushes up.
  CHECK(primary.silence(milliseconds(1500)) == "");
  CHECK(primary.silence(milliseconds(50)) == "drop 9");
  CHECK(primary.silence(milliseconds(3000)) == "");
}

TEST_CASE("replica, rule 1: with a standby in the plan a push is answered when the standby holds it") {
  Primary primary;
  primary.pair(3);
  CHECK(primary.append(4) == "");
  CHECK(primary.append(5) == "");
  CHECK(primary.holds(4) == "answer 4");
  CHECK(primary.holds(3) == "");  // late, and less
  CHECK(primary.holds(5) == "answer 5");
}

TEST_CASE("replica, rule 1: asynchronous replication answers at once, and keeps the standby in the plan") {
  Primary primary(GroupRules::Wait::none);
  primary.pair(3);
  CHECK(primary.append(4) == "answer 4");
}

TEST_CASE(
    "replica, rule 2: it waits for the standby first, then the standby holds all, then the plan says so") {
  Primary primary;
  for (uint64_t i = 1; i <= 10; i++) primary.append(i);
  primary.silence(milliseconds(100));
  CHECK(primary.subscribe() == "");
  CHECK(primary.holds(4) == "");  // far behind: pushes do not wait while it catches up
  CHECK(primary.append(11) == "answer 11");
  CHECK_FALSE(primary.state.primary()->waitsFor());
  CHECK(primary.silence(milliseconds(100)) == "");  // 11 was there a beat ago
  CHECK(primary.append(12) == "answer 12");
  CHECK(primary.holds(11) == "");  // close: now pushes wait
  CHECK(primary.state.primary()->waitsFor() == kOther);
  CHECK(primary.append(13) == "");
  CHECK(primary.holds(12) == "swap 1 1:7+9");  // all that was answered without it
  CHECK(primary.append(14) == "");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(primary.holds(14) == "answer 14");
}

TEST_CASE("replica, rule 2: a standby that goes before the plan names it is waited for no longer") {
  Primary primary;
  for (uint64_t i = 1; i <= 2; i++) primary.append(i);
  primary.subscribe();
  primary.silence(milliseconds(100));
  primary.append(3);
  CHECK(primary.holds(2) == "");
  CHECK(primary.append(4) == "");
  SECTION("its connection breaks") {
    CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "answer 4");
  }
  SECTION("it is silent") { CHECK(primary.silence(milliseconds(350)) == "answer 4"); }
}

TEST_CASE("replica, rule 2: one that has not said that its image is whole is not added") {
  Primary primary;
  CHECK(primary.subscribe() == "");
  CHECK(primary.silence(milliseconds(100)) == "");
  CHECK(primary.holds(0) == "swap 1 1:7+9");
}

TEST_CASE("replica, rule 3: it waits for a silent standby until the plan no longer names it") {
  Primary primary;
  primary.pair();
  CHECK(primary.append(1) == "");
  CHECK(primary.silence(milliseconds(1500)) == "");
  CHECK(primary.silence(milliseconds(50)) == "drop 9, swap 2 1:7+none");
  CHECK(primary.append(2) == "");
  CHECK(primary.won({}) == "answer 2");
}

TEST_CASE("replica, rule 3: a standby that is certainly dead is removed at once") {
  Primary primary;
  primary.pair();
  primary.append(1);
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.peerRefuses(kThird, primary.now)) == "");
  CHECK(text(primary.state.peerRefuses(kOther, primary.now)) == "swap 2 1:7+none");
  CHECK(primary.won({}) == "answer 1");
}

TEST_CASE("replica, rule 3: a standby that leaves is followed by acknowledgments until it is removed") {
  Primary primary;
  primary.pair();
  CHECK(text(primary.state.standbyLeaves(kOther, primary.now)) == "swap 2 1:7+none");
  CHECK(primary.append(1) == "");
  CHECK(primary.holds(1) == "answer 1");
  CHECK(primary.append(2) == "");
  CHECK(primary.won({}) == "answer 2, drop 9");
}

TEST_CASE("replica, rule 5: a swap that adds and has no answer is waited for until a newer plan was read") {
  Primary primary;
  primary.append(1);
  primary.subscribe();
  REQUIRE(primary.holds(1) == "swap 1 1:7+9");
  CHECK(primary.append(2) == "");
  CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
  SECTION("it was won") {
    CHECK(primary.read(2, kOther) == "in sync 9");
    CHECK(primary.holds(2) == "answer 2");
  }
  SECTION("the plan is as before: it may still win, so it is made again, and the standby waited for") {
    CHECK(primary.read(1, {}) == "swap 1 1:7+9");
    CHECK(primary.append(3) == "");
  }
  SECTION("the standby dies meanwhile: the plan has to move before pushes go on") {
    CHECK(text(primary.state.peerRefuses(kOther, primary.now)) == "");
    CHECK(primary.read(1, {}) == "swap 1 1:7+none");
    CHECK(primary.append(3) == "");
    SECTION("and does") { CHECK(primary.won({}) == "answer 3"); }
    SECTION("by the swap that was lost: once more") {
      CHECK(text(primary.state.swapRefused({2, 1, kMe, kOther}, primary.now)) == "swap 2 1:7+none");
      CHECK(primary.won({}) == "answer 3");
    }
  }
  SECTION("the engine is away: reads, ever more slowly, and no push is answered") {
    std::vector<int> beats;
    for (int reads = 0; reads < 8; reads++) {
      CHECK(text(primary.state.readUnknown(primary.now)) == "");
      int beat = 0;
      std::string wanted;
      while (wanted.empty() && beat < 100) {
        primary.now += milliseconds(50);
        CHECK(text(primary.state.standbyHeard(kOther, primary.now)) == "");
        wanted = text(primary.state.tick(primary.now));
        beat++;
      }
      CHECK(wanted == "read");
      beats.push_back(beat);
    }
    CHECK(beats == std::vector<int>{1, 2, 4, 8, 16, 30, 30, 30});
    CHECK(primary.append(3) == "");
    CHECK(primary.read(2, kOther) == "in sync 9");
    CHECK(primary.holds(3) == "answer 3");
  }
}

TEST_CASE("replica, rule 5: a view that is older than what is known says nothing") {
  Primary primary;
  primary.pair();
  CHECK(primary.read(1, {}) == "");
  CHECK(primary.append(1) == "");
  CHECK(primary.state.plan().standby == kOther);
}

TEST_CASE("replica: swaps that another group's change refused are made again") {
  Primary primary;
  primary.subscribe();
  REQUIRE(primary.holds(0) == "swap 1 1:7+9");
  CHECK(text(primary.state.swapRefused({5, 1, kMe, {}}, primary.now)) == "swap 5 1:7+9");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(text(primary.state.peerRefuses(kOther, primary.now)) == "swap 6 1:7+none");
  CHECK(text(primary.state.swapRefused({8, 1, kMe, kOther}, primary.now)) == "swap 8 1:7+none");
}

TEST_CASE(
    "replica, rule 8: a primary that the plan no longer names steps down and answers nothing any more") {
  Primary primary;
  primary.pair();
  CHECK(primary.append(1) == "");
  SECTION("told by a refused swap") {
    primary.silence(milliseconds(1550));
    CHECK(text(primary.state.swapRefused({3, 2, kOther, {}}, primary.now)) == "step down");
  }
  SECTION("told by a watch") {
    CHECK(text(primary.state.planRead({3, 2, kOther, {}}, primary.now)) == "step down");
  }
  CHECK(primary.state.role() == GroupRole::over);
  CHECK(primary.holds(1) == "");
  CHECK(primary.append(2) == "");
  CHECK(text(primary.state.leave(primary.now)) == "");
}

TEST_CASE("replica, rule 2: a standby comes in sync though pushes go as fast as it takes them") {
  Primary primary;
  uint64_t appended = 0;
  while (appended < 200) primary.append(++appended);
  primary.silence(milliseconds(100));
  primary.subscribe();
  // Of what is appended it lacks what ten beats bring, always.
  const auto beat = [&] {
    for (int i = 0; i < 10; i++) primary.append(++appended);
    primary.silence(milliseconds(50));
    return primary.holds(appended - 100);
  };
  for (int i = 0; i < 30; i++) REQUIRE(beat() == "");
  CHECK_FALSE(primary.state.primary()->waitsFor());
  for (int i = 0; i < 5 && !primary.state.primary()->waitsFor(); i++) REQUIRE(beat() == "");
  REQUIRE(primary.state.primary()->waitsFor() == kOther);
  const uint64_t from = appended;
  CHECK(primary.append(++appended) == "");
  CHECK(primary.holds(from - 1).find("swap") == std::string::npos);
  CHECK(primary.holds(from).find("swap 1 1:7+9") != std::string::npos);
}

TEST_CASE("replica, rule 10: a primary writes its plan again that is gone, with the standby that it hears") {
  Primary primary;
  SECTION("alone") {
    CHECK(text(primary.state.planRead({2, 0, {}, {}}, primary.now)) == "swap 2 3:7+none");
    CHECK(text(primary.state.swapWon({3, 3, kMe, {}}, primary.now)) == "renewed 3");
    CHECK(primary.append(1) == "answer 1");
  }
  SECTION("with its standby, which goes on holding all that is answered") {
    primary.pair(2);
    CHECK(text(primary.state.planRead({3, 0, {}, {}}, primary.now)) == "swap 3 3:7+9");
    CHECK(primary.append(3) == "");
    CHECK(text(primary.state.swapWon({4, 3, kMe, kOther}, primary.now)) == "renewed 3, in sync 9");
    CHECK(primary.append(4) == "");
    CHECK(primary.holds(4) == "answer 4");
  }
  SECTION("a standby that it does not hear may have taken over: that one first, and no answers meanwhile") {
    primary.pair(2);
    CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
    CHECK(text(primary.state.planRead({3, 0, {}, {}}, primary.now)) == "");
    CHECK(primary.append(3) == "");
    CHECK(primary.silence(milliseconds(950)) == "");
    CHECK(primary.silence(milliseconds(50)) == "swap 3 3:7+none");
    SECTION("it has not") {
      CHECK(text(primary.state.swapWon({4, 3, kMe, {}}, primary.now)) == "renewed 3, answer 3");
    }
    SECTION("it has") {
      CHECK(text(primary.state.swapRefused({4, 4, kOther, {}}, primary.now)) == "step down");
    }
  }
  SECTION("somebody else was first") {
    CHECK(text(primary.state.planRead({2, 0, {}, {}}, primary.now)) == "swap 2 3:7+none");
    CHECK(text(primary.state.swapRefused({3, 1, kThird, {}}, primary.now)) == "step down");
  }
}

TEST_CASE("replica: one standby at a time, and none in the place of one that may take over") {
  Primary primary;
  CHECK(primary.subscribe() == "");
  CHECK(primary.subscribe(kThird) == "drop 11");  // the first catches up
  CHECK(primary.subscribe(kMe) == "drop 7");
  CHECK(primary.holds(0) == "swap 1 1:7+9");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(primary.subscribe(kThird) == "drop 11");
  SECTION("it comes again, and is told again") {
    CHECK(primary.subscribe() == "in sync 9");
    CHECK(primary.append(1) == "");
    CHECK(primary.holds(1) == "answer 1");
  }
  SECTION("it is removed: the next one") {
    CHECK(text(primary.state.peerRefuses(kOther, primary.now)) == "swap 2 1:7+none");
    CHECK(primary.won({}) == "");
    CHECK(primary.subscribe(kThird) == "");
    CHECK(primary.holds(0, kThird) == "swap 3 1:7+11");
  }
}

TEST_CASE("replica: a standby that is silent while the engine is away is waited for again when it is back") {
  Primary primary;
  primary.pair();
  CHECK(primary.silence(milliseconds(1550)) == "drop 9, swap 2 1:7+none");
  CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
  CHECK(text(primary.state.readUnknown(primary.now)) == "");
  CHECK(primary.append(1) == "");
  CHECK(primary.subscribe() == "in sync 9");
  CHECK(primary.holds(1) == "answer 1");
  // The swap that was lost takes it out after all: it is added again.
  CHECK(primary.read(3, {}) == "swap 3 1:7+9");
}

TEST_CASE("replica: the primary's own standstill counts against no standby") {
  Primary primary;
  primary.pair();
  primary.silence(milliseconds(50));
  primary.now += milliseconds(60'000);
  CHECK(text(primary.state.tick(primary.now)) == "");
  CHECK(primary.silence(milliseconds(1400)) == "");
  CHECK(primary.silence(milliseconds(150)) == "drop 9, swap 2 1:7+none");
}

TEST_CASE("replica: a standby that says it holds what there is not is cut off") {
  Primary primary;
  primary.pair(2);
  CHECK(primary.holds(3) == "drop 9");
  CHECK(primary.append(3) == "");
}

TEST_CASE("replica: a planned hand-over") {
  Primary primary;
  primary.pair(2);
  CHECK(text(primary.state.handOver(primary.now)) == "close gates");
  CHECK(text(primary.state.handOver(primary.now)) == "");
  CHECK(primary.append(3) == "");
  CHECK(text(primary.state.gatesClosed(primary.now)) == "");  // not all is there
  SECTION("when the standby holds all, the plan names it as primary") {
    CHECK(primary.holds(3) == "answer 3, swap 2 2:9+none");
    SECTION("and it is told") {
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "take over 9, step down whole");
    }
    SECTION("it knows before the primary does, and hangs up") {
      CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "take over 9, step down whole");
    }
    SECTION("it hangs up, and the swap is refused: there is none") {
      CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
      CHECK(text(primary.state.swapRefused({3, 1, kMe, kOther}, primary.now)) == "open gates");
    }
    SECTION("the engine is silent: nobody waits for it longer than for a standby") {
      CHECK(primary.silence(milliseconds(1500)) == "");
      CHECK(primary.silence(milliseconds(50)) == "open gates");
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "step down");
    }
    SECTION("the swap has no answer, and the plan is as before: again") {
      CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
      CHECK(primary.read(2, kOther) == "swap 2 2:9+none");
    }
  }
  SECTION("the standby leaves: there is none") {
    CHECK(text(primary.state.standbyLeaves(kOther, primary.now)) == "open gates, swap 2 1:7+none");
    CHECK(primary.append(4) == "");
  }
  SECTION("the standby does not get there: there is none") {
    CHECK(primary.silence(milliseconds(1500)) == "");
    CHECK(primary.silence(milliseconds(50)) == "open gates, drop 9, swap 2 1:7+none");
  }
  SECTION("the standby has taken over by itself: nobody says that it has all") {
    CHECK(text(primary.state.planRead({3, 2, kOther, {}}, primary.now)) == "step down");
  }
}

TEST_CASE("replica: there is no hand-over to nobody") {
  Primary primary;
  CHECK(text(primary.state.handOver(primary.now)) == "open gates");
  primary.pair();
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.handOver(primary.now)) == "open gates");
}

TEST_CASE("replica: a primary that leaves hands over, or ends alone") {
  Primary primary;
  SECTION("alone") {
    CHECK(text(primary.state.leave(primary.now)) == "ended alone");
    CHECK(primary.state.role() == GroupRole::over);
  }
  SECTION("with a standby") {
    primary.pair(1);
    CHECK(text(primary.state.leave(primary.now)) == "close gates");
    SECTION("that takes over") {
      CHECK(text(primary.state.gatesClosed(primary.now)) == "swap 2 2:9+none");
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "take over 9, ended");
    }
    SECTION("that leaves as well") {
      CHECK(text(primary.state.standbyLeaves(kOther, primary.now)) == "ended alone");
    }
  }
}

TEST_CASE("replica: who has ended the run writes no plan again, whatever becomes of the one there was") {
  Primary primary;
  primary.pair();
  CHECK(text(primary.state.endRun()) == "");
  CHECK(primary.state.role() == GroupRole::over);
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.planRead({9, 0, {}, {}}, primary.now)) == "");
  CHECK(primary.silence(milliseconds(1500)) == "");
}

}  // namespace
}  // namespace psd::replica_primary_test
