#include "server/replica/folder_record.h"

#include <optional>

#include "server/replica/replica_state.h"
#include "test/support/catch.h"
#include "test/unit/server/replica/replica_actions_text.h"

namespace psd::folder_record_test {
namespace {

using std::chrono::milliseconds;
using testing::text;

constexpr DaemonId kMe{9}, kPrimary{7}, kStandby{11}, kOther{13};
constexpr ReplicationRules kRules{milliseconds(50), milliseconds(300), milliseconds(1500),
                                  ReplicationRules::Wait::standby, milliseconds(1000)};
const EndedRun kRun{3, kPrimary, kStandby, true};

SavedFolder primarys(DaemonId daemon, uint64_t term) { return {FolderRecord{daemon, term, false, true}}; }
SavedFolder standbys(DaemonId daemon, bool complete = true) {
  return {FolderRecord{daemon, 3, true, complete}};
}

/// A started daemon, and what it requests immediately and later.
struct Started {
  Started(const ClusterView& plan, const SavedFolder& folder, const std::string& wants = "")
      : state(kMe, kRules, now) {
    CHECK(text(state.start(plan, 0, now, folder)) == wants);
  }
  /// What it requests of the cluster document within `time`, without reads.
  std::string after(milliseconds time) {
    ReplicaActions all;
    for (; time.count() > 0; time -= milliseconds(50)) {
      now += milliseconds(50);
      for (auto& one : state.tick(now)) {
        if (std::holds_alternative<replica_action::Read>(one)) {
          static_cast<void>(state.readUnknown(now));
        } else {
          all.push_back(one);
        }
      }
    }
    return text(all);
  }
  TimePoint now{};
  ReplicaState state;
};

TEST_CASE("after a run that is over the daemon that has all of it starts the next one") {
  CHECK(startDelay(kRun, primarys(kPrimary, 3), kRules) == milliseconds(0));
  CHECK(startDelay(kRun, standbys(kPrimary), kRules) == milliseconds(0));  // it took over later
  CHECK(startDelay(kRun, standbys(kStandby), kRules) == milliseconds(3000));
  CHECK(startDelay(kRun, {.record = {}, .chosen = true}, kRules) == milliseconds(0));
  // Another process, another term, a standby that was removed, or whose log may be incomplete.
  CHECK_FALSE(startDelay(kRun, primarys(kOther, 3), kRules));
  CHECK_FALSE(startDelay(kRun, primarys(kPrimary, 2), kRules));
  CHECK_FALSE(startDelay(kRun, primarys(kOther, 4), kRules));
  CHECK_FALSE(startDelay(kRun, standbys(kOther), kRules));
  CHECK_FALSE(startDelay(kRun, standbys(kStandby, false), kRules));
  CHECK_FALSE(startDelay(kRun, {FolderRecord()}, kRules));  // cannot be read
  CHECK_FALSE(startDelay(kRun, {}, kRules));
  EndedRun nothing = kRun;
  nothing.saved = false;
  CHECK(startDelay(nothing, {}, kRules) == milliseconds(1000));
  CHECK_FALSE(startDelay(nothing, primarys(kOther, 1), kRules));
}

TEST_CASE("no daemon starts automatically from a document restored from a folder") {
  EndedRun guess = kRun;
  guess.source = DocumentSource::primaryFolder;
  CHECK_FALSE(startDelay(guess, primarys(kPrimary, 3), kRules));
  CHECK_FALSE(startDelay(guess, {}, kRules));
  CHECK(startDelay(guess, {.record = {}, .chosen = true}, kRules) == milliseconds(0));
  const auto isNewerThan = [&](const FolderRecord& record) {
    return isNewer(asEndedRun(record, kMe), guess);
  };
  CHECK(isNewerThan({kOther, 4}));
  CHECK_FALSE(isNewerThan({kOther, 3}));
  CHECK_FALSE(isNewerThan({kOther, 3, true}));
  guess.source = DocumentSource::standbyFolder;
  CHECK(isNewerThan({kOther, 3}));
  CHECK_FALSE(isNewerThan({kOther, 3, true}));
  CHECK_FALSE(isNewerThan({}));  // cannot be read
}

TEST_CASE("a document continues a folder's state if it is later, or of the same primary") {
  const ClusterView plan{5, 3, kPrimary, {}};
  CHECK(continuesFolder(plan, {}));
  CHECK(continuesFolder(plan, primarys(kPrimary, 3)));
  CHECK(continuesFolder(plan, primarys(kOther, 2)));
  CHECK(continuesFolder(plan, standbys(kOther)));  // that primary's, or an earlier one's
  CHECK_FALSE(continuesFolder({5, 2, kPrimary, {}}, standbys(kOther)));
  CHECK_FALSE(continuesFolder(plan, primarys(kOther, 3)));
  CHECK_FALSE(continuesFolder(plan, primarys(kOther, 7)));
  CHECK(continuesFolder(plan, {.record = {}, .chosen = true}));
}

TEST_CASE("replica, rule 11: after a run that is over") {
  const ClusterView over{.revision = 8, .ended = kRun};
  SECTION("the last primary's folder starts the next one immediately") {
    ReplicaState state(kMe, kRules, TimePoint{});
    CHECK(text(state.start(over, 0, TimePoint{}, primarys(kPrimary, 3))) == "swap 8 4:9+none");
    CHECK(text(state.swapWon({9, 4, kMe, {}}, TimePoint{})) == "promote 4");
  }
  SECTION("its standby's does if the primary's is absent for a while") {
    Started standby(over, standbys(kStandby));
    CHECK(standby.after(milliseconds(2950)) == "");
    CHECK(standby.after(milliseconds(50)) == "swap 8 4:9+none");
    CHECK(text(standby.state.swapRefused({9, 4, kOther, {}}, standby.now)) == "follow 13 in 4");
  }
  SECTION("an older one waits, and follows the one that starts") {
    Started older(over, primarys(kOther, 1));
    CHECK(older.after(milliseconds(60'000)) == "");
    CHECK(text(older.state.documentRead({9, 4, kStandby, {}}, older.now)) == "follow 11 in 4");
  }
  SECTION("an operator lets it start") {
    Started older(over, primarys(kOther, 1));
    CHECK(text(older.state.claim(over, older.now)) == "swap 8 4:9+none");
    CHECK(text(older.state.swapWon({9, 4, kMe, {}}, older.now)) == "promote 4");
  }
  SECTION("one without a state waits, too") {
    Started empty(over, {});
    CHECK(empty.after(milliseconds(60'000)) == "");
  }
  SECTION("and starts if nothing was saved") {
    ClusterView nothing = over;
    nothing.ended->saved = false;
    Started empty(nothing, {});
    CHECK(empty.after(milliseconds(950)) == "");
    CHECK(empty.after(milliseconds(50)) == "swap 8 4:9+none");
  }
}

TEST_CASE("replica, rule 11: without a cluster document") {
  SECTION("a folder's state is written before a daemon starts without a document") {
    Started stranger({}, primarys(kOther, 4), "swap 0 guess 4:13");
    ClusterView told{1, 0, {}, {}, EndedRun{4, kOther, {}, true, DocumentSource::primaryFolder}};
    CHECK(text(stranger.state.swapWon(told, stranger.now)) == "");
    CHECK(stranger.after(milliseconds(60'000)) == "");
    SECTION("and an operator decides") {
      CHECK(text(stranger.state.claim(told, stranger.now)) == "swap 1 5:9+none");
    }
    SECTION("or the daemon that served in the lost document") {
      CHECK(text(stranger.state.documentRead({2, 6, kPrimary, {}}, stranger.now)) == "follow 7 in 6");
    }
  }
  SECTION("a later state replaces another one") {
    ClusterView told{1, 0, {}, {}, EndedRun{4, kOther, {}, true, DocumentSource::primaryFolder}};
    ReplicaState state(kMe, kRules, TimePoint{});
    CHECK(text(state.start(told, 0, TimePoint{}, primarys(kPrimary, 5))) == "swap 1 guess 5:7");
  }
  SECTION("one without a state starts") {
    Started empty({}, {});
    CHECK(empty.after(milliseconds(950)) == "");
    CHECK(empty.after(milliseconds(50)) == "swap 0 1:9+none");
  }
}

TEST_CASE("replica, rule 11: a daemon whose state the document does not continue does not follow") {
  Started other({5, 2, kPrimary, {}}, primarys(kOther, 6));
  CHECK(other.state.contradicts());
  CHECK(other.after(milliseconds(5000)) == "");
  CHECK(text(other.state.documentRead({6, 7, kStandby, {}}, other.now)) == "follow 11 in 7");
  CHECK_FALSE(other.state.contradicts());
}

TEST_CASE("replica: a daemon that took part in a run ends with it, whichever one has recorded the end") {
  const ClusterView over{.revision = 8, .ended = kRun};
  ReplicaState follower(kMe, kRules, TimePoint{});
  CHECK(text(follower.start({1, 3, kPrimary, {}}, 0, TimePoint{})) == "follow 7 in 3");
  CHECK(text(follower.documentRead(over, TimePoint{})) == "run over");
  CHECK(follower.role() == ReplicaRole::ended);
  ReplicaState primary(kMe, kRules, TimePoint{});
  CHECK(text(primary.start({1, 2, kMe, {}}, 0, TimePoint{})) == "promote 2");
  CHECK(text(primary.documentRead(over, TimePoint{})) == "step down");
}

}  // namespace
}  // namespace psd::folder_record_test
