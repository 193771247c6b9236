#include "server/cluster/cluster_document_client.h"

#include "server/serving/cluster_document_json.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/memory_engine.h"

namespace psd::group_plan_test {
namespace {

using namespace testing;

constexpr DaemonId kOne{7}, kOther{9};
const std::string kKey = "/psd/test/plan";

std::vector<Address> at(const char* address) { return {parseAddress(address).value()}; }

/// One daemon and what it reads and writes.
struct Member {
  Member(MemoryRegister& all, DaemonId me, const char* address)
      : engine(all), plan(engine, kKey, me, at(address)) {}
  MemoryEngine engine;
  ClusterDocumentClient plan;
};

struct Pair {
  TestLoop loop;
  MemoryRegister all;
  Member one{all, kOne, "tcp://one:1"}, other{all, kOther, "tcp://other:2"};

  ClusterDocumentClient::Outcome swapped(Member& member, uint64_t expected, const ClusterView& wanted,
                                         const std::vector<Address>& standbyAt = {}) {
    auto outcome = loop.wait(member.plan.swap(expected, wanted, standbyAt));
    PSD_REQUIRE_OK(outcome);
    return *outcome;
  }
  ClusterView read(Member& member) {
    auto plan = loop.wait(member.plan.read());
    PSD_REQUIRE_OK(plan);
    return *plan;
  }
};

TEST_CASE("the first of two daemons creates the document, and the other one reads it") {
  Pair pair;
  CHECK(pair.read(pair.one) == ClusterView{});
  CHECK(pair.read(pair.other) == ClusterView{});
  const auto made = pair.swapped(pair.one, 0, {0, 1, kOne, {}});
  CHECK(made.won);
  CHECK(made.plan.primary == kOne);
  CHECK(made.plan.term == 1);
  const auto late = pair.swapped(pair.other, 0, {0, 1, kOther, {}});
  CHECK_FALSE(late.won);
  CHECK(late.plan == made.plan);
  CHECK(pair.other.plan.addressesOf(kOne) == at("tcp://one:1"));
  CHECK(pair.other.plan.primaryAddress() == "tcp://one:1");
}

TEST_CASE("a standby is named with its addresses, takes over, and the previous primary is removed") {
  Pair pair;
  const ClusterView first = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  const auto named = pair.swapped(pair.one, first.revision, {0, 1, kOne, kOther}, at("tcp://other:2"));
  CHECK(named.won);
  CHECK(named.plan.standby == kOther);
  CHECK(pair.read(pair.other) == named.plan);
  const auto taken = pair.swapped(pair.other, named.plan.revision, {0, 2, kOther, {}});
  CHECK(taken.won);
  CHECK(taken.plan.term == 2);
  CHECK(taken.plan.primary == kOther);
  CHECK_FALSE(taken.plan.standby);
  CHECK(pair.other.plan.addressesOf(kOne).empty());
  // A swap by the previous primary from its outdated state is rejected, and the reply shows why.
  const auto refused = pair.swapped(pair.one, named.plan.revision, {0, 1, kOne, {}});
  CHECK_FALSE(refused.won);
  CHECK(refused.plan == taken.plan);
}

TEST_CASE("a run that is over yields to the next one, in the next term") {
  Pair pair;
  pair.swapped(pair.one, 0, {0, 1, kOne, {}});
  PSD_REQUIRE_OK(pair.loop.wait(pair.one.plan.end(true)));
  const ClusterView over = pair.read(pair.other);
  CHECK(over.vacant());
  CHECK(over.ended == EndedRun{1, kOne, {}, true});
  CHECK(pair.other.plan.ended());
  CHECK(pair.other.plan.addressOf(kOne) == "tcp://one:1");
  const auto next = pair.swapped(pair.other, over.revision, {0, 2, kOther, {}});
  CHECK(next.won);
  CHECK(next.plan.term == 2);
  CHECK_FALSE(pair.other.plan.ended());
}

TEST_CASE(
    "a run ends though the document was changed just before, but not if another daemon has taken over") {
  Pair pair;
  const ClusterView first = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  pair.read(pair.other);
  pair.swapped(pair.other, first.revision, {0, 1, kOne, kOther}, at("tcp://other:2"));  // as if it were
  PSD_REQUIRE_OK(pair.loop.wait(pair.one.plan.end(true)));
  const ClusterView over = pair.read(pair.other);
  CHECK(over.ended == EndedRun{1, kOne, kOther, true});
  CHECK(pair.other.plan.ended());
  PSD_REQUIRE_OK(pair.loop.wait(pair.one.plan.end(true)));
  const ClusterView next = pair.swapped(pair.other, over.revision, {0, 2, kOther, {}}).plan;
  const Status late = pair.loop.wait(pair.one.plan.end(true));
  CHECK(late.message() == "another daemon is the primary by now: tcp://other:2");
  CHECK(pair.read(pair.other) == next);
}

TEST_CASE("without a document a folder's state is written, and replaced by the previous serving daemon") {
  Pair pair;
  const ClusterView made = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  pair.all.erase(kKey);
  const ClusterView gone = pair.loop.wait(pair.one.plan.changed()).value();
  CHECK(gone.vacant());
  CHECK_FALSE(gone.ended);
  const ClusterView nothing = pair.read(pair.other);
  const DaemonId saved{77};
  const EndedRun told{3, saved, {}, true, DocumentSource::primaryFolder};
  const auto guess = pair.swapped(pair.other, nothing.revision, {0, 0, {}, {}, told});
  CHECK(guess.won);
  CHECK(guess.plan.ended == told);
  CHECK_FALSE(pair.other.plan.ended());
  CHECK(pair.other.plan.addressesOf(saved) == at("tcp://other:2"));
  const ClusterView seen = pair.read(pair.one);
  CHECK(seen.revision > made.revision);
  CHECK(seen.ended == told);
  CHECK(pair.one.plan.trouble().find("the cluster document is gone") == 0);
  const auto again = pair.swapped(pair.one, seen.revision, {0, 3, kOne, {}});
  CHECK(again.won);
  CHECK(again.plan.primary == kOne);
  CHECK(again.plan.term == 3);
}

TEST_CASE("a swap without an answer, or with an invalid document, is not known to have failed") {
  Pair pair;
  pair.one.engine.loseAnswers(1);
  CHECK_FALSE(pair.loop.wait(pair.one.plan.swap(0, {0, 1, kOne, {}}, {})).ok());
  CHECK_FALSE(pair.one.plan.trouble().empty());
  const ClusterView made = pair.read(pair.one);
  CHECK(made.primary == kOne);
  CHECK(pair.one.plan.trouble().empty());
  CHECK_FALSE(pair.loop.wait(pair.one.plan.swap(made.revision, {0, 1, kOne, {}}, {})).ok());
  CHECK(pair.read(pair.one) == made);
}

TEST_CASE("a lost document is reported, and written again as requested") {
  Pair pair;
  const ClusterView first = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  const ClusterView named =
      pair.swapped(pair.one, first.revision, {0, 1, kOne, kOther}, at("tcp://other:2")).plan;
  CHECK(pair.read(pair.other) == named);
  SECTION("its key") { pair.all.erase(kKey); }
  SECTION("with all that the engine held") { pair.all.lose(); }
  auto gone = pair.loop.wait(pair.one.plan.changed());
  PSD_REQUIRE_OK(gone);
  CHECK(gone->vacant());
  CHECK(gone->revision > named.revision);
  CHECK(pair.one.plan.trouble().find("the cluster document is gone") == 0);
  CHECK(pair.one.plan.addressesOf(kOther) == at("tcp://other:2"));
  // A request based on the lost document cannot succeed any more.
  CHECK_FALSE(pair.loop.wait(pair.one.plan.swap(named.revision, {0, 1, kOne, {}}, {})).ok());
  const auto again = pair.swapped(pair.one, gone->revision, {0, 3, kOne, kOther});
  CHECK(again.won);
  CHECK(again.plan.revision > gone->revision);
  CHECK(again.plan.term == 3);
  CHECK(again.plan.standby == kOther);
  CHECK(pair.one.plan.trouble().empty());
  const ClusterView seen = pair.read(pair.other);
  CHECK(seen.revision > named.revision);
  CHECK(seen.sameGroup(again.plan));
  CHECK(pair.other.plan.addressesOf(kOne) == at("tcp://one:1"));
}

TEST_CASE("a document of a daemon that did not know the lost one is newer than the lost one") {
  Pair pair;
  const ClusterView made = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  pair.all.put(kKey + "2", "so that revisions are higher than they will be");
  const ClusterView touched =
      pair.swapped(pair.one, made.revision, {0, 1, kOne, kOther}, at("tcp://x:1")).plan;
  pair.all.lose();
  pair.swapped(pair.other, 0, {0, 1, kOther, {}});
  const ClusterView seen = pair.read(pair.one);
  CHECK(seen.revision > touched.revision);
  CHECK(seen.primary == kOther);
}

TEST_CASE("an answer from before the loss of a document is ignored after it") {
  Pair pair;
  pair.swapped(pair.one, 0, {0, 1, kOne, {}});
  pair.one.engine.holdAnswers();
  auto late = pair.one.plan.read();
  pair.all.erase(kKey);
  const ClusterView view = pair.loop.wait(pair.one.plan.changed()).value();
  CHECK(view.vacant());
  pair.one.engine.releaseAnswers();
  CHECK(pair.loop.wait(kj::mv(late)).value() == view);
  CHECK(pair.one.plan.trouble().find("the cluster document is gone") == 0);
}

TEST_CASE("an invalid document is reported as trouble, and the last known one stays") {
  Pair pair;
  const ClusterView made = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  pair.all.put(kKey, "{}");
  CHECK_FALSE(pair.loop.wait(pair.one.plan.read()).ok());
  CHECK(pair.one.plan.trouble().find("the cluster document: ") == 0);
  CHECK(pair.one.plan.addressesOf(kOne) == at("tcp://one:1"));
  CHECK(made.primary == kOne);
}

using Moving = ClusterDocumentClient::Moving;
const RecordedMove kMove{0xfeed, {{"tcp://there:1", "unix:///there"}, {"tcp://there:2"}}};

TEST_CASE("a model that moves away cannot be resumed here, and all replicas receive its address") {
  Pair pair;
  pair.swapped(pair.one, 0, {0, 1, kOne, {}});
  CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == Moving::counts);
  for (Member* member : {&pair.one, &pair.other}) {
    pair.read(*member);
    REQUIRE(member->plan.moved());
    CHECK(*member->plan.moved() == kMove);
    CHECK(member->plan.ended());
    CHECK_FALSE(pair.loop.wait(member->plan.swap(0, {0, 1, kOther, {}}, {})).ok());
  }
  CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == Moving::counts);
  CHECK(pair.loop.wait(pair.one.plan.moveAway({0xbeef, kMove.to})) == Moving::stays);
}

TEST_CASE("a model does not move away from a daemon that another one has replaced") {
  Pair pair;
  const ClusterView first = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
  pair.read(pair.other);
  const ClusterView named =
      pair.swapped(pair.one, first.revision, {0, 1, kOne, kOther}, at("tcp://other:2")).plan;
  pair.read(pair.other);
  pair.swapped(pair.other, named.revision, {0, 2, kOther, {}});
  CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == Moving::stays);
  CHECK(pair.loop.wait(pair.other.plan.moveAway(kMove)) == Moving::counts);
}

TEST_CASE("a model does not move away by a lost document") {
  Pair pair;
  pair.swapped(pair.one, 0, {0, 1, kOne, {}});
  pair.all.erase(kKey);
  CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == Moving::stays);
  CHECK(pair.all.read(kKey).revision == 0);
}

TEST_CASE("a move whose swap has no answer is undecided until the document shows its outcome") {
  enum class Loss { request, answer, late };
  for (const Loss loss : {Loss::request, Loss::answer, Loss::late}) {
    for (const bool takenOver : {false, true}) {
      CAPTURE(static_cast<int>(loss), takenOver);
      Pair pair;
      const ClusterView first = pair.swapped(pair.one, 0, {0, 1, kOne, {}}).plan;
      const ClusterView named =
          pair.swapped(pair.one, first.revision, {0, 1, kOne, kOther}, at("tcp://other:2")).plan;
      pair.read(pair.other);
      if (loss == Loss::request) pair.one.engine.loseRequests(1);
      if (loss == Loss::answer) pair.one.engine.loseAnswers(1);
      if (loss == Loss::late) pair.one.engine.delayRequests(1);
      CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == Moving::unknown);
      if (takenOver) {
        const auto taken = pair.loop.wait(pair.other.plan.swap(named.revision, {0, 2, kOther, {}}, {}));
        PSD_REQUIRE_OK(taken);
        CHECK(taken->won == (loss != Loss::answer));
      }
      const bool counts = !takenOver || loss == Loss::answer;
      CHECK(pair.loop.wait(pair.one.plan.moveAway(kMove)) == (counts ? Moving::counts : Moving::stays));
      pair.one.engine.deliverLate();
      pair.read(pair.other);
      CHECK((pair.other.plan.moved() != nullptr) == counts);
    }
  }
  Pair away;
  away.swapped(away.one, 0, {0, 1, kOne, {}});
  away.one.engine.setAway(true);
  CHECK(away.loop.wait(away.one.plan.moveAway(kMove)) == Moving::unknown);
  away.one.engine.setAway(false);
  CHECK(away.loop.wait(away.one.plan.moveAway(kMove)) == Moving::counts);
}

}  // namespace
}  // namespace psd::group_plan_test
