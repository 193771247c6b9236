#include <optional>
#include <string>

#include "server/replica/replica_state.h"
#include "test/support/catch.h"
#include "test/unit/server/replica/replica_actions_text.h"

namespace psd::replica_standby_test {
namespace {

using std::chrono::milliseconds;
using testing::text;

constexpr DaemonId kMe{9}, kPrimary{7}, kOther{11};

/// A daemon that joins a replica set that has a primary.
struct Follower {
  explicit Follower(std::optional<ClusterView> plan = ClusterView{1, 1, kPrimary, {}})
      : state(kMe, {milliseconds(50), milliseconds(300), milliseconds(1500), ReplicationRules::Wait::standby},
              now) {
    if (plan) CHECK(text(state.start(*plan, 0, now)) == "follow 7 in 1");
  }

  std::string read(const ClusterView& plan) { return text(state.documentRead(plan, now)); }
  std::string refused(const ClusterView& plan) { return text(state.swapRefused(plan, now)); }
  std::string unknown() { return text(state.swapUnknown(now)); }
  std::string unread() { return text(state.readUnknown(now)); }
  std::string holds(uint64_t number) { return text(state.recordsHeld(number, now)); }
  std::string refuses(DaemonId id = kPrimary) { return text(state.peerDead(id, now)); }
  /// Beats during which the primary is silent. Returns the actions requested in them.
  std::string silence(milliseconds time) { return testing::silence(state, now, time); }
  /// It holds `number` records, and the document names it in revision 2.
  void inSync(uint64_t number) {
    REQUIRE(holds(number) == "");
    REQUIRE(state.role() == ReplicaRole::syncing);
    REQUIRE(read({2, 1, kPrimary, kMe}) == "");
    REQUIRE(state.role() == ReplicaRole::standby);
  }

  TimePoint now{};
  ReplicaState state;
};

TEST_CASE("replica, rule 4: no run starts in the place of one that a claim has shown") {
  Follower one(std::nullopt);
  CHECK(text(one.state.start({3, 0, {}, {}}, 0, one.now)) == "swap 3 1:9+none");
  const ClusterView dead{4, 5, kPrimary, {}};
  CHECK(text(one.state.claim(dead, one.now)) == "");  // one swap at a time
  CHECK(one.unknown() == "read");
  CHECK(one.read({3, 0, {}, {}}) == "");  // late, by a watch
  CHECK(one.silence(milliseconds(50)) == "");
  CHECK(one.read(dead) == "follow 7 in 5");
}

TEST_CASE("replica, rule 10: no daemon makes itself primary of a lost document") {
  Follower one;
  one.inSync(3);
  CHECK(one.read({3, 0, {}, {}}) == "");  // the primary rewrites it
  CHECK(one.state.role() == ReplicaRole::syncing);
  SECTION("it does, in another term: the state here continues it") {
    CHECK(one.read({4, 3, kPrimary, kMe}) == "");
    CHECK(one.state.role() == ReplicaRole::standby);
    CHECK(one.state.takes(kPrimary, 1));
    CHECK(one.refuses() == "close replication, swap 4 4:9+none");
  }
  const ClusterView guess{4, 0, {}, {}, EndedRun{1, kPrimary, {}, true, DocumentSource::primaryFolder}};
  SECTION("it is dead: what is known of the document, and an operator decides") {
    CHECK(one.refuses() == "swap 3 guess 1:7");
    CHECK(text(one.state.swapWon(guess, one.now)) == "");
    CHECK(one.state.role() == ReplicaRole::syncing);
    CHECK(text(one.state.claim(guess, one.now)) == "swap 4 2:9+none");
    CHECK(text(one.state.swapWon({5, 2, kMe, {}}, one.now)) == "close replication, promote 2");
  }
  SECTION("it was about to take over") {
    Follower late;
    late.inSync(3);
    CHECK(late.refuses() == "close replication, swap 2 2:9+none");
    CHECK(late.refused({3, 0, {}, {}}) == "swap 3 guess 1:7");
    CHECK(text(late.state.swapWon(guess, late.now)) == "");
    CHECK(text(late.state.claim(guess, late.now)) == "swap 4 2:9+none");
    CHECK(text(late.state.swapWon({5, 2, kMe, {}}, late.now)) == "promote 2");
  }
}

TEST_CASE("replica: without a document the first daemon creates it, and of two one succeeds") {
  Follower one(std::nullopt);
  CHECK(text(one.state.start({}, 5, one.now)) == "swap 0 1:9+none");
  SECTION("it succeeds, and continues numbering from what it holds") {
    CHECK(text(one.state.swapWon({1, 1, kMe, {}}, one.now)) == "promote 1");
    CHECK(one.state.number() == 5);
    CHECK(text(one.state.recordAppended(6, one.now)) == "answer 6");
  }
  SECTION("the other one succeeds") {
    CHECK(one.refused({1, 1, kPrimary, {}}) == "follow 7 in 1");
    CHECK(one.state.role() == ReplicaRole::syncing);
  }
  SECTION("the swap has no answer") {
    CHECK(one.unknown() == "read");
    SECTION("and succeeded") { CHECK(one.read({1, 1, kMe, {}}) == "promote 1"); }
    SECTION("and there is still no document") { CHECK(one.read({}) == "swap 0 1:9+none"); }
    SECTION("nor has the read") {
      CHECK(one.unread() == "");
      CHECK(one.silence(milliseconds(50)) == "read");
    }
  }
}

TEST_CASE("replica, rule 4: a synced standby takes over by a swap from the revision that names it") {
  Follower standby;
  standby.inSync(5);
  CHECK(standby.silence(milliseconds(300)) == "");
  CHECK(standby.silence(milliseconds(50)) == "close replication, swap 2 2:9+none");
  CHECK(standby.state.role() == ReplicaRole::standby);  // not yet
  CHECK(text(standby.state.recordAppended(6, standby.now)) == "");
  CHECK(text(standby.state.swapWon({3, 2, kMe, {}}, standby.now)) == "promote 2");
  CHECK(standby.state.role() == ReplicaRole::primary);
  CHECK(standby.state.number() == 5);
  CHECK(text(standby.state.recordAppended(6, standby.now)) == "answer 6");
}

TEST_CASE("replica, rule 4: immediately when the primary is certainly dead") {
  Follower standby;
  standby.inSync(5);
  CHECK(text(standby.state.primaryConnectionGone(standby.now)) == "");
  CHECK(standby.refuses(kOther) == "");
  CHECK(standby.refuses() == "close replication, swap 2 2:9+none");
  CHECK(standby.refuses() == "");
}

TEST_CASE("replica, rule 4: not while the primary shows any activity") {
  Follower standby;
  standby.inSync(5);
  for (int i = 0; i < 20; i++) {
    CHECK(standby.silence(milliseconds(250)) == "");
    CHECK(text(standby.state.primaryHeard(standby.now)) == "");
  }
}

TEST_CASE("replica, rule 4: a syncing replica does not take over, but reads whether it was added") {
  Follower syncing;
  syncing.holds(5);
  CHECK(syncing.silence(milliseconds(350)) == "");
  CHECK(syncing.silence(milliseconds(50)) == "read");
  SECTION("it was, before the primary could notify it") {
    CHECK(syncing.read({2, 1, kPrimary, kMe}) == "");
    CHECK(syncing.silence(milliseconds(50)) == "close replication, swap 2 2:9+none");
  }
  SECTION("it was not: it keeps dialling, and reads at growing intervals") {
    CHECK(syncing.read({1, 1, kPrimary, {}}) == "");
    CHECK(syncing.refuses() == "");
    CHECK(syncing.silence(milliseconds(100)) == "read");
    CHECK(syncing.read({1, 1, kPrimary, {}}) == "");
    CHECK(syncing.silence(milliseconds(200)) == "");
    CHECK(syncing.silence(milliseconds(50)) == "read");
  }
}

TEST_CASE("replica, rule 4: one that the document names and that holds nothing does not take over") {
  Follower syncing;
  CHECK(syncing.read({2, 1, kPrimary, kMe}) == "");
  CHECK(syncing.state.role() == ReplicaRole::syncing);
  CHECK(syncing.refuses() == "");
}

TEST_CASE("replica, rule 4: a rejected swap") {
  Follower standby;
  standby.inSync(5);
  REQUIRE(standby.refuses() == "close replication, swap 2 2:9+none");
  SECTION("another replica set's part has changed: again") {
    CHECK(standby.refused({4, 1, kPrimary, kMe}) == "swap 4 2:9+none");
    CHECK(text(standby.state.swapWon({5, 2, kMe, {}}, standby.now)) == "promote 2");
  }
  SECTION("the primary has removed it: it follows again, with what it holds") {
    CHECK(standby.refused({3, 1, kPrimary, {}}) == "follow 7 in 1");
    CHECK(standby.state.role() == ReplicaRole::syncing);
    CHECK(standby.state.takes(kPrimary, 1));
    CHECK(standby.holds(6) == "");
    CHECK(standby.read({4, 1, kPrimary, kMe}) == "");
    CHECK(standby.state.role() == ReplicaRole::standby);
  }
  SECTION("another daemon is primary: the state here is worthless") {
    CHECK(standby.refused({3, 2, kOther, {}}) == "step down");
    CHECK(standby.state.role() == ReplicaRole::ended);
  }
}

TEST_CASE("replica, rule 5: a swap without an answer is unknown") {
  Follower standby;
  standby.inSync(5);
  REQUIRE(standby.refuses() == "close replication, swap 2 2:9+none");
  CHECK(standby.unknown() == "read");
  SECTION("it succeeded") { CHECK(standby.read({3, 2, kMe, {}}) == "promote 2"); }
  SECTION("it did not, or not yet: again") {
    CHECK(standby.read({2, 1, kPrimary, kMe}) == "swap 2 2:9+none");
    CHECK(standby.refused({3, 2, kMe, {}}) == "promote 2");  // the first one has succeeded by now
  }
  SECTION("the engine is away: it returns to following, since the primary may be there") {
    CHECK(standby.unread() == "follow 7 in 1");
    CHECK(text(standby.state.primaryHeard(standby.now)) == "");
    CHECK(standby.holds(6) == "");
    CHECK(standby.silence(milliseconds(50)) == "read");
    SECTION("the primary is, and continues") {
      CHECK(standby.read({2, 1, kPrimary, kMe}) == "");
      CHECK(standby.state.role() == ReplicaRole::standby);
      // The swap may still succeed: it reads again.
      CHECK(standby.silence(milliseconds(100)) == "read");
      CHECK(standby.read({3, 2, kMe, {}}) == "close replication, promote 2");
      CHECK(standby.state.number() == 6);
    }
    SECTION("the primary is not: again, when the engine is back") {
      CHECK(standby.unread() == "");
      CHECK(standby.silence(milliseconds(400)) == "read");
      CHECK(standby.read({2, 1, kPrimary, kMe}) == "");
      CHECK(standby.silence(milliseconds(50)) == "close replication, swap 2 2:9+none");
    }
  }
}

TEST_CASE("replica, rule 5: answers that arrive after promotion are not mistaken for others") {
  Follower standby;
  standby.inSync(5);
  REQUIRE(standby.refuses() == "close replication, swap 2 2:9+none");
  CHECK(standby.read({3, 2, kMe, {}}) == "promote 2");  // a watch was faster
  CHECK(text(standby.state.standbySubscribed(kOther, standby.now)) == "");
  // No second swap while the first one's answer is outstanding.
  CHECK(text(standby.state.standbyHolds(kOther, 5, standby.now)) == "");
  CHECK(text(standby.state.swapWon({3, 2, kMe, {}}, standby.now)) == "swap 3 2:9+11");
}

TEST_CASE("replica, rule 6: a daemon that discards its state ends") {
  Follower standby;
  standby.inSync(5);
  CHECK(standby.read({3, 2, kOther, {}}) == "step down");
  CHECK(standby.read({4, 2, kOther, kMe}) == "");
  CHECK(standby.refuses(kOther) == "");
  CHECK(standby.silence(milliseconds(1000)) == "");
}

TEST_CASE("replica: a syncing replica that holds nothing follows any primary") {
  Follower syncing;
  CHECK(syncing.read({2, 2, kOther, {}}) == "follow 11 in 2");
  CHECK(syncing.state.takes(kOther, 2));
  CHECK_FALSE(syncing.state.takes(kPrimary, 1));
}

TEST_CASE(
    "replica, rule 7: records are accepted from the followed primary and term, while they are followed") {
  Follower standby;
  CHECK(standby.state.takes(kPrimary, 1));
  CHECK_FALSE(standby.state.takes(kPrimary, 2));
  CHECK_FALSE(standby.state.takes(kOther, 1));
  standby.inSync(5);
  REQUIRE(standby.refuses() == "close replication, swap 2 2:9+none");
  CHECK_FALSE(standby.state.takes(kPrimary, 1));
  CHECK(standby.holds(6) == "");  // late
  CHECK(standby.state.number() == 5);
  CHECK(text(standby.state.primaryHeard(standby.now)) == "");
  CHECK(text(standby.state.swapWon({3, 2, kMe, {}}, standby.now)) == "promote 2");
  CHECK_FALSE(standby.state.takes(kPrimary, 1));
  CHECK_FALSE(standby.state.takes(kMe, 2));
}

TEST_CASE("replica: the standby's own stall does not count as silence") {
  Follower standby;
  standby.inSync(5);
  standby.silence(milliseconds(50));
  standby.now += milliseconds(60'000);
  CHECK(text(standby.state.tick(standby.now)) == "");
  CHECK(standby.silence(milliseconds(200)) == "");
  CHECK(standby.silence(milliseconds(100)) == "close replication, swap 2 2:9+none");
}

TEST_CASE("replica: a standby takes over when the document says so, as after a switchover") {
  Follower standby;
  standby.inSync(5);
  CHECK(standby.read({3, 2, kMe, {}}) == "close replication, promote 2");
  CHECK(standby.state.role() == ReplicaRole::primary);
  CHECK(standby.state.number() == 5);
}

TEST_CASE("replica: a standby that drains requests its removal first") {
  Follower standby;
  SECTION("a syncing replica just ends") { CHECK(text(standby.state.leave(standby.now)) == "ended"); }
  SECTION("in sync") {
    standby.inSync(5);
    CHECK(text(standby.state.leave(standby.now)) == "tell leaving");
    CHECK(text(standby.state.leave(standby.now)) == "");
    SECTION("and is removed") {
      CHECK(text(standby.state.primaryConnectionGone(standby.now)) == "read");
      CHECK(standby.read({3, 1, kPrimary, {}}) == "ended");
    }
    SECTION("and is not: it waits for a bounded time") {
      for (int i = 0; i < 29; i++) {
        CHECK(text(standby.state.primaryHeard(standby.now)) == "");
        CHECK(standby.silence(milliseconds(50)) == "");
      }
      CHECK(standby.silence(milliseconds(50)) == "ended");
    }
    SECTION("and the primary dies: what it holds is saved") {
      CHECK(standby.refuses() == "close replication, swap 2 2:9+none");
      CHECK(text(standby.state.swapWon({3, 2, kMe, {}}, standby.now)) == "promote 2, ended alone");
    }
  }
  CHECK((standby.state.role() == ReplicaRole::ended));
}

TEST_CASE("replica: after both have died, a decision makes one primary") {
  Follower one;
  const ClusterView dead{1, 1, kPrimary, kOther};
  CHECK(one.read(dead) == "");
  CHECK(one.refuses() == "");
  CHECK(text(one.state.claim(dead, one.now)) == "swap 1 2:9+none");
  CHECK(text(one.state.claim(dead, one.now)) == "");
  SECTION("it succeeds") {
    CHECK(text(one.state.swapWon({2, 2, kMe, {}}, one.now)) == "close replication, promote 2");
  }
  SECTION("another replica set's part had changed: the decision stands") {
    CHECK(one.refused({3, 1, kPrimary, kOther}) == "swap 3 2:9+none");
  }
  SECTION("another daemon has decided") { CHECK(one.refused({2, 2, kOther, {}}) == "follow 11 in 2"); }
  SECTION("without an answer, and nothing has changed: again") {
    CHECK(one.unknown() == "read");
    CHECK(one.read(dead) == "swap 1 2:9+none");
  }
}

TEST_CASE("replica: a decision needs a current document, and is not for a standby or a primary") {
  Follower one;
  CHECK(one.read({2, 1, kPrimary, {}}) == "");
  CHECK(text(one.state.claim({1, 1, kPrimary, {}}, one.now)) == "");
  CHECK(text(one.state.claim({}, one.now)) == "");
  CHECK(one.holds(1) == "");
  CHECK(one.read({3, 1, kPrimary, kMe}) == "");
  CHECK(text(one.state.claim({3, 1, kPrimary, kMe}, one.now)) == "");
  CHECK(one.read({4, 2, kMe, {}}) == "close replication, promote 2");
  CHECK(text(one.state.claim({4, 2, kMe, {}}, one.now)) == "");
}

}  // namespace
}  // namespace psd::replica_standby_test
