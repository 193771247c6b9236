#include <optional>
#include <string>
#include <vector>

#include "server/replica/replica_state.h"
#include "test/support/catch.h"
#include "test/unit/server/replica/replica_actions_text.h"

namespace psd::replica_primary_test {
namespace {

using std::chrono::milliseconds;
using testing::text;

constexpr DaemonId kMe{7}, kOther{9}, kThird{11};

/// A primary from its first start on, and the engine's answers to it.
struct Primary {
  explicit Primary(ReplicationRules::Wait wait = ReplicationRules::Wait::standby)
      : state(kMe, rules(wait), now) {
    CHECK(text(state.start({}, 0, now)) == "");
    CHECK(silence(milliseconds(950)) == "");  // a daemon that served under a lost document would write it now
    CHECK(silence(milliseconds(50)) == "swap 0 1:7+none");
    CHECK(text(state.swapWon({1, 1, kMe, {}}, now)) == "promote 1");
    CHECK(state.role() == ReplicaRole::primary);
  }
  static ReplicationRules rules(ReplicationRules::Wait wait) {
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
    return text(state.documentRead({revision, 1, kMe, standby}, now));
  }
  /// Beats during which the standby is silent. Returns the actions requested in them.
  std::string silence(milliseconds time) { return testing::silence(state, now, time); }
  /// The standby is in the document, of revision 2, and holds `number` records.
  void pair(uint64_t number = 0) {
    for (uint64_t i = 1; i <= number; i++) append(i);
    subscribe();
    REQUIRE(holds(number) == "swap 1 1:7+9");
    REQUIRE(won(kOther) == "in sync 9");
  }

  TimePoint now{};
  ReplicaState state;
};

TEST_CASE("replica, rule 9: a primary without a standby in the document answers alone") {
  Primary primary;
  CHECK(primary.append(1) == "answer 1");
  CHECK(primary.append(2) == "answer 2");
  // A follower that is not in the document is not waited for.
  CHECK(primary.subscribe() == "");
  CHECK(primary.append(3) == "answer 3");
  // It is dropped when it stalls, since what is not sent to it yet may delay pushes.
  CHECK(primary.silence(milliseconds(1500)) == "");
  CHECK(primary.silence(milliseconds(50)) == "drop 9");
  CHECK(primary.silence(milliseconds(3000)) == "");
}

TEST_CASE("replica, rule 1: with a standby in the document a push is answered when the standby holds it") {
  Primary primary;
  primary.pair(3);
  CHECK(primary.append(4) == "");
  CHECK(primary.append(5) == "");
  CHECK(primary.holds(4) == "answer 4");
  CHECK(primary.holds(3) == "");  // late, and less
  CHECK(primary.holds(5) == "answer 5");
}

TEST_CASE(
    "replica, rule 1: asynchronous replication answers immediately, and keeps the standby in the document") {
  Primary primary(ReplicationRules::Wait::none);
  primary.pair(3);
  CHECK(primary.append(4) == "answer 4");
}

TEST_CASE(
    "replica, rule 2: it waits for the standby, then the standby holds all, then the document names it") {
  Primary primary;
  for (uint64_t i = 1; i <= 10; i++) primary.append(i);
  primary.silence(milliseconds(100));
  CHECK(primary.subscribe() == "");
  CHECK(primary.holds(4) == "");  // far behind: pushes do not wait while it catches up
  CHECK(primary.append(11) == "answer 11");
  CHECK_FALSE(primary.state.primary()->waitsFor());
  CHECK(primary.silence(milliseconds(100)) == "");  // 11 existed a beat ago
  CHECK(primary.append(12) == "answer 12");
  CHECK(primary.holds(11) == "");  // close: now pushes wait
  CHECK(primary.state.primary()->waitsFor() == kOther);
  CHECK(primary.append(13) == "");
  CHECK(primary.holds(12) == "swap 1 1:7+9");  // everything that was answered without it
  CHECK(primary.append(14) == "");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(primary.holds(14) == "answer 14");
}

TEST_CASE("replica, rule 2: a standby that departs before the document names it is not waited for") {
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

TEST_CASE("replica, rule 2: one that has not confirmed its whole image is not added") {
  Primary primary;
  CHECK(primary.subscribe() == "");
  CHECK(primary.silence(milliseconds(100)) == "");
  CHECK(primary.holds(0) == "swap 1 1:7+9");
}

TEST_CASE("replica, rule 3: it waits for a silent standby until the document no longer names it") {
  Primary primary;
  primary.pair();
  CHECK(primary.append(1) == "");
  CHECK(primary.silence(milliseconds(1500)) == "");
  CHECK(primary.silence(milliseconds(50)) == "drop 9, swap 2 1:7+none");
  CHECK(primary.append(2) == "");
  CHECK(primary.won({}) == "answer 2");
}

TEST_CASE("replica, rule 3: a standby that is certainly dead is removed immediately") {
  Primary primary;
  primary.pair();
  primary.append(1);
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.peerDead(kThird, primary.now)) == "");
  CHECK(text(primary.state.peerDead(kOther, primary.now)) == "swap 2 1:7+none");
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

TEST_CASE("replica, rule 5: an adding swap without an answer is waited for until a newer document was read") {
  Primary primary;
  primary.append(1);
  primary.subscribe();
  REQUIRE(primary.holds(1) == "swap 1 1:7+9");
  CHECK(primary.append(2) == "");
  CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
  SECTION("it succeeded") {
    CHECK(primary.read(2, kOther) == "in sync 9");
    CHECK(primary.holds(2) == "answer 2");
  }
  SECTION(
      "the document is unchanged: the swap may still succeed, so it is retried, and the standby waited for") {
    CHECK(primary.read(1, {}) == "swap 1 1:7+9");
    CHECK(primary.append(3) == "");
  }
  SECTION("the standby dies meanwhile: the document has to change before pushes continue") {
    CHECK(text(primary.state.peerDead(kOther, primary.now)) == "");
    CHECK(primary.read(1, {}) == "swap 1 1:7+none");
    CHECK(primary.append(3) == "");
    SECTION("and does") { CHECK(primary.won({}) == "answer 3"); }
    SECTION("by the lost swap: once more") {
      CHECK(text(primary.state.swapRefused({2, 1, kMe, kOther}, primary.now)) == "swap 2 1:7+none");
      CHECK(primary.won({}) == "answer 3");
    }
  }
  SECTION("the engine is away: reads, at growing intervals, and no push is answered") {
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

TEST_CASE("replica, rule 5: a view older than the known one is ignored") {
  Primary primary;
  primary.pair();
  CHECK(primary.read(1, {}) == "");
  CHECK(primary.append(1) == "");
  CHECK(primary.state.plan().standby == kOther);
}

TEST_CASE("replica: swaps rejected because of another replica set's change are retried") {
  Primary primary;
  primary.subscribe();
  REQUIRE(primary.holds(0) == "swap 1 1:7+9");
  CHECK(text(primary.state.swapRefused({5, 1, kMe, {}}, primary.now)) == "swap 5 1:7+9");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(text(primary.state.peerDead(kOther, primary.now)) == "swap 6 1:7+none");
  CHECK(text(primary.state.swapRefused({8, 1, kMe, kOther}, primary.now)) == "swap 8 1:7+none");
}

TEST_CASE("replica, rule 8: a primary that the document no longer names steps down and answers no more") {
  Primary primary;
  primary.pair();
  CHECK(primary.append(1) == "");
  SECTION("notified by a rejected swap") {
    primary.silence(milliseconds(1550));
    CHECK(text(primary.state.swapRefused({3, 2, kOther, {}}, primary.now)) == "step down");
  }
  SECTION("notified by a watch") {
    CHECK(text(primary.state.documentRead({3, 2, kOther, {}}, primary.now)) == "step down");
  }
  CHECK(primary.state.role() == ReplicaRole::ended);
  CHECK(primary.holds(1) == "");
  CHECK(primary.append(2) == "");
  CHECK(text(primary.state.leave(primary.now)) == "");
}

TEST_CASE("replica, rule 2: a standby becomes synced though pushes arrive as fast as it takes them") {
  Primary primary;
  uint64_t appended = 0;
  while (appended < 200) primary.append(++appended);
  primary.silence(milliseconds(100));
  primary.subscribe();
  // It always lacks what is appended in ten beats.
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

TEST_CASE(
    "replica, rule 10: a primary rewrites its lost document, with the standby that it is connected to") {
  Primary primary;
  SECTION("alone") {
    CHECK(text(primary.state.documentRead({2, 0, {}, {}}, primary.now)) == "swap 2 3:7+none");
    CHECK(text(primary.state.swapWon({3, 3, kMe, {}}, primary.now)) == "renewed 3");
    CHECK(primary.append(1) == "answer 1");
  }
  SECTION("with its standby, which keeps holding everything that is answered") {
    primary.pair(2);
    CHECK(text(primary.state.documentRead({3, 0, {}, {}}, primary.now)) == "swap 3 3:7+9");
    CHECK(primary.append(3) == "");
    CHECK(text(primary.state.swapWon({4, 3, kMe, kOther}, primary.now)) == "renewed 3, in sync 9");
    CHECK(primary.append(4) == "");
    CHECK(primary.holds(4) == "answer 4");
  }
  SECTION("an unreachable standby may have taken over: that one first, and no answers meanwhile") {
    primary.pair(2);
    CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
    CHECK(text(primary.state.documentRead({3, 0, {}, {}}, primary.now)) == "");
    CHECK(primary.append(3) == "");
    CHECK(primary.silence(milliseconds(450)) == "");  // half of the absence
    CHECK(primary.silence(milliseconds(50)) == "swap 3 3:7+none");
    SECTION("it has not") {
      CHECK(text(primary.state.swapWon({4, 3, kMe, {}}, primary.now)) == "renewed 3, answer 3");
    }
    SECTION("it has") {
      CHECK(text(primary.state.swapRefused({4, 4, kOther, {}}, primary.now)) == "step down");
    }
  }
  SECTION("another daemon was first") {
    CHECK(text(primary.state.documentRead({2, 0, {}, {}}, primary.now)) == "swap 2 3:7+none");
    CHECK(text(primary.state.swapRefused({3, 1, kThird, {}}, primary.now)) == "step down");
  }
}

TEST_CASE("replica: one standby at a time, and none replaces one that may take over") {
  Primary primary;
  CHECK(primary.subscribe() == "");
  CHECK(primary.subscribe(kThird) == "drop 11");  // the first catches up
  CHECK(primary.subscribe(kMe) == "drop 7");
  CHECK(primary.holds(0) == "swap 1 1:7+9");
  CHECK(primary.won(kOther) == "in sync 9");
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(primary.subscribe(kThird) == "drop 11");
  SECTION("it subscribes again, and is notified again") {
    CHECK(primary.subscribe() == "in sync 9");
    CHECK(primary.append(1) == "");
    CHECK(primary.holds(1) == "answer 1");
  }
  SECTION("it is removed: the next one") {
    CHECK(text(primary.state.peerDead(kOther, primary.now)) == "swap 2 1:7+none");
    CHECK(primary.won({}) == "");
    CHECK(primary.subscribe(kThird) == "");
    CHECK(primary.holds(0, kThird) == "swap 3 1:7+11");
  }
}

TEST_CASE("replica: a standby that is silent while the engine is away is waited for again afterwards") {
  Primary primary;
  primary.pair();
  CHECK(primary.silence(milliseconds(1550)) == "drop 9, swap 2 1:7+none");
  CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
  CHECK(text(primary.state.readUnknown(primary.now)) == "");
  CHECK(primary.append(1) == "");
  CHECK(primary.subscribe() == "in sync 9");
  CHECK(primary.holds(1) == "answer 1");
  // The lost swap removes it after all: it is added again.
  CHECK(primary.read(3, {}) == "swap 3 1:7+9");
}

TEST_CASE("replica: the primary's own stall counts against no standby") {
  Primary primary;
  primary.pair();
  primary.silence(milliseconds(50));
  primary.now += milliseconds(60'000);
  CHECK(text(primary.state.tick(primary.now)) == "");
  CHECK(primary.silence(milliseconds(1400)) == "");
  CHECK(primary.silence(milliseconds(150)) == "drop 9, swap 2 1:7+none");
}

TEST_CASE("replica: a standby that claims to hold records that do not exist is dropped") {
  Primary primary;
  primary.pair(2);
  CHECK(primary.holds(3) == "drop 9");
  CHECK(primary.append(3) == "");
}

TEST_CASE("replica: a switchover") {
  Primary primary;
  primary.pair(2);
  CHECK(text(primary.state.handOver(primary.now)) == "close gates");
  CHECK(text(primary.state.handOver(primary.now)) == "");
  CHECK(primary.append(3) == "");
  CHECK(text(primary.state.gatesClosed(primary.now)) == "");  // not everything is there
  SECTION("when the standby holds all, the document names it as primary") {
    CHECK(primary.holds(3) == "answer 3, swap 2 2:9+none");
    SECTION("and it is notified") {
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "take over 9, step down whole");
    }
    SECTION("it knows before the primary does, and disconnects") {
      CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "take over 9, step down whole");
    }
    SECTION("it disconnects, and the swap is rejected: no switchover") {
      CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
      CHECK(text(primary.state.swapRefused({3, 1, kMe, kOther}, primary.now)) == "open gates");
    }
    SECTION("the engine is silent: it is waited for no longer than a standby") {
      CHECK(primary.silence(milliseconds(1500)) == "");
      CHECK(primary.silence(milliseconds(50)) == "open gates");
      CHECK(text(primary.state.swapWon({3, 2, kOther, {}}, primary.now)) == "step down");
    }
    SECTION("the swap has no answer, and the document is unchanged: again") {
      CHECK(text(primary.state.swapUnknown(primary.now)) == "read");
      CHECK(primary.read(2, kOther) == "swap 2 2:9+none");
    }
  }
  SECTION("the standby leaves: no switchover") {
    CHECK(text(primary.state.standbyLeaves(kOther, primary.now)) == "open gates, swap 2 1:7+none");
    CHECK(primary.append(4) == "");
  }
  SECTION("the standby does not catch up: no switchover") {
    CHECK(primary.silence(milliseconds(1500)) == "");
    CHECK(primary.silence(milliseconds(50)) == "open gates, drop 9, swap 2 1:7+none");
  }
  SECTION("the standby has taken over alone: it is not reported to hold all") {
    CHECK(text(primary.state.documentRead({3, 2, kOther, {}}, primary.now)) == "step down");
  }
}

TEST_CASE("replica: there is no switchover without a standby") {
  Primary primary;
  CHECK(text(primary.state.handOver(primary.now)) == "open gates");
  primary.pair();
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.handOver(primary.now)) == "open gates");
}

TEST_CASE("replica: a primary that drains hands over, or ends alone") {
  Primary primary;
  SECTION("alone") {
    CHECK(text(primary.state.leave(primary.now)) == "ended alone");
    CHECK(primary.state.role() == ReplicaRole::ended);
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

TEST_CASE("replica: a daemon that has ended the run never rewrites the document, whatever happens to it") {
  Primary primary;
  primary.pair();
  CHECK(text(primary.state.endRun()) == "");
  CHECK(primary.state.role() == ReplicaRole::ended);
  CHECK(text(primary.state.standbyConnectionGone(kOther, primary.now)) == "");
  CHECK(text(primary.state.documentRead({9, 0, {}, {}}, primary.now)) == "");
  CHECK(primary.silence(milliseconds(1500)) == "");
}

}  // namespace
}  // namespace psd::replica_primary_test
