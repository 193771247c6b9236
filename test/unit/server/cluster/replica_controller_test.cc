#include "server/cluster/replica_controller.h"

#include <optional>

#include "server/checkpoint/log_format.h"
#include "server/serving/cluster_document_json.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/fake_daemon.h"
#include "test/support/memory_engine.h"

namespace psd::group_member_test {
namespace {

using namespace testing;

const std::string kKey = "/psd/test/plan";

/// A daemon that serves on request. Owned by one thread.
class ServingHost final : public FakeDaemon, public ReplicatedModel {
 public:
  void exit(const std::string&) override { ended = true; }
  void adoptMove(const RecordedMove& to) override { moved = to; }

  Status serve(uint64_t, bool) override { return {}; }
  void continueServing(uint64_t) override {}
  bool saves() const override { return saved; }
  bool hasValues() const override { return true; }
  kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream>) override { return kj::NEVER_DONE; }
  Result<CopyPlace> makeCopy(Env&, const Checkpoint&, uint64_t) override {
    return Error{ErrorCode::internal, "it follows no primary"};
  }
  void showCopy() override {}
  void serveCopy(FollowedState, uint64_t) override {}

  std::optional<RecordedMove> moved;
  bool ended = false;
  bool saved = false;
};

/// The first daemon of a replica set, which serves alone. Owned by one thread.
struct Serving {
  Serving() {
    member.start({});
    REQUIRE(loop.until([this] { return serving.term() > 0; }));
  }
  static ReplicaSettings terms() {
    ReplicaSettings terms{{}, kKey, {parseAddress("tcp://one:1").value()}, "one"};
    terms.replication.silenceMs = 20'000;
    terms.replication.aloneMs = 60'000;
    return terms;
  }
  bool ended() const {
    const auto plan = parseDocument(all.read(kKey).text);
    PSD_REQUIRE_OK(plan);
    return plan->ended;
  }
  /// Delivers everything that was written by now.
  void deliverAll() {
    for (int i = 0; i < 10; i++) {
      const size_t watches = engine.watches();
      all.put("/psd/other", std::to_string(i));
      REQUIRE(loop.until([&] { return engine.watches() > watches; }));
    }
  }

  TestLoop loop;
  MemoryRegister all;
  MemoryEngine engine{all};
  ServingHost host;
  ServingState serving;
  ReplicaController member{terms(),
                           DaemonId{7},
                           engine,
                           serving,
                           host,
                           host,
                           std::make_shared<Replicator>(),
                           [](const PrimaryDial&) -> std::unique_ptr<PrimaryConnection> { return nullptr; },
                           loop.timer()};
};

TEST_CASE("trainers are not sent to a daemon that did not follow their primary") {
  Serving serving;
  uint64_t term = 0;
  auto any = serving.member.whenServing(0, DaemonId())
                 .then([&](uint64_t served) { term = served; })
                 .eagerlyEvaluate(nullptr);
  REQUIRE(serving.loop.until([&] { return term > 0; }));
  bool told = false;
  auto other = serving.member.whenServing(0, DaemonId{99})
                   .then([&](uint64_t) { told = true; })
                   .eagerlyEvaluate(nullptr);
  serving.deliverAll();
  CHECK_FALSE(told);
}

TEST_CASE("a daemon that has ended a run does not write its document again if that is lost") {
  Serving one;
  PSD_REQUIRE_OK(one.loop.wait(one.member.endRun("all is done")));
  CHECK(one.ended());
  CHECK(one.serving.rejection(ServingState::Peer::reader)->message == "the run is over");
  one.deliverAll();
  one.all.erase(kKey);
  one.deliverAll();
  CHECK(one.all.read(kKey).revision == 0);
}

TEST_CASE("a run ends though its lost document is being written again") {
  Serving one;
  one.engine.holdAnswers();
  const size_t swaps = one.engine.swaps();
  one.all.erase(kKey);
  REQUIRE(one.loop.until([&] { return one.engine.swaps() > swaps; }));
  CHECK_FALSE(one.ended());
  auto ends = one.member.endRun("all is done");
  CHECK_FALSE(one.loop.resolved(ends));
  one.engine.releaseAnswers();
  PSD_REQUIRE_OK(one.loop.wait(kj::mv(ends)));
  CHECK(one.ended());
  one.deliverAll();
  CHECK(one.ended());
}

TEST_CASE("a serving daemon without a call to the engine reports all the same that it is away") {
  Serving one;
  CHECK(one.member.status().engine == "");
  one.engine.setAway(true);
  CHECK(one.loop.until([&] { return one.member.status().engine == "the engine in memory does not answer"; }));
  CHECK(one.serving.term() > 0);
  one.engine.setAway(false);
  CHECK(one.loop.until([&] { return one.member.status().engine == ""; }));
}

class SilentConnection final : public PrimaryConnection {
 public:
  void stop() override {}
};

/// A daemon of a replica set whose connection to a primary is silent. Owned by one thread.
struct Follows {
  TestLoop loop;
  MemoryRegister all;
  MemoryEngine engine{all};
  ServingHost host;
  ServingState serving;
  std::optional<PrimaryEvents> primary;
  ReplicaController member{Serving::terms(),
                           DaemonId{7},
                           engine,
                           serving,
                           host,
                           host,
                           std::make_shared<Replicator>(),
                           [this](const PrimaryDial& dial) -> std::unique_ptr<PrimaryConnection> {
                             primary = dial.events;
                             return std::make_unique<SilentConnection>();
                           },
                           loop.timer()};
};

/// A daemon that follows the primary 3, whose events the test makes. Owned by one thread.
struct Following : Follows {
  Following() {
    plan.proposal = 1;
    plan.group = {.term = 1, .primary = DaemonId{3}, .standby = {}, .history = 5};
    plan.daemons[DaemonId{3}] = {parseAddress("tcp://three:1").value()};
    all.put(kKey, documentText(plan));
    member.start({});
    REQUIRE(loop.until([this] { return primary.has_value() && engine.watches() > 0; }));
  }
  void put(const Result<ClusterDocument>& changed) {
    PSD_REQUIRE_OK(changed);
    plan = *changed;
    const size_t watches = engine.watches();
    all.put(kKey, documentText(plan));
    REQUIRE(loop.until([&] { return engine.watches() > watches; }));
  }

  ClusterDocument plan;
};

TEST_CASE("at its run's end a daemon announces the model's address from the watch, though a read hangs") {
  Following one;
  one.engine.holdAnswers();
  one.primary->runEnded("the model has moved");
  kj::Promise<void> never = kj::NEVER_DONE;
  one.loop.resolved(never);  // the read is in flight
  one.put(withMove(one.plan, {9, {{"tcp://new:1"}}}, 2));
  CHECK(one.loop.until([&] { return one.host.ended; }));
  REQUIRE(one.host.moved);
  CHECK(one.host.moved->move == 9);
}

TEST_CASE("a standby that drains may leave once its run is over, or its model has moved") {
  Following one;
  one.primary->caughtUp();
  one.put(withStandby(one.plan, DaemonId{7}, {parseAddress("tcp://one:1").value()}, 2));
  REQUIRE(one.loop.until([&] { return one.member.status().role == "standby"; }));
  auto left = one.member.leave();
  CHECK_FALSE(one.loop.resolved(left));
  SECTION("its primary reports that the run is over") { one.primary->runEnded("all is done"); }
  SECTION("the document says that the model has moved") {
    one.put(withMove(one.plan, {9, {{"tcp://new:1"}}}, 3));
  }
  CHECK(one.loop.until([&] { return one.loop.resolved(left); }));
  CHECK(one.host.ended != one.host.moved.has_value());
}

TEST_CASE("a primary that drains while a move is being decided may leave after the decision") {
  Serving one;
  one.engine.holdAnswers();
  auto moved = one.member.moveAway({9, {{"tcp://new:1"}}});
  CHECK_FALSE(one.loop.resolved(moved));
  auto left = one.member.leave();
  CHECK_FALSE(one.loop.resolved(left));
  const bool counts = GENERATE(true, false);
  if (!counts) {
    auto taken = parseDocument(one.all.read(kKey).text);
    PSD_REQUIRE_OK(taken);
    taken->proposal++;
    taken->group = {.term = 2, .primary = DaemonId{3}, .standby = {}, .history = 5};
    taken->daemons[DaemonId{3}] = {parseAddress("tcp://three:1").value()};
    one.all.put(kKey, documentText(*taken));
  }
  one.engine.releaseAnswers();
  const auto came = one.loop.wait(kj::mv(moved));
  PSD_REQUIRE_OK(came);
  CHECK(*came == counts);
  CHECK(one.loop.until([&] { return one.loop.resolved(left); }));
}

TEST_CASE("a run that ends while a move is being recorded does not overwrite its record") {
  Serving one;
  one.engine.holdAnswers();
  auto moved = one.member.moveAway({9, {{"tcp://new:1"}}});
  CHECK_FALSE(one.loop.resolved(moved));
  auto ends = one.member.endRun("all is done");
  CHECK_FALSE(one.loop.resolved(ends));
  one.engine.releaseAnswers();
  CHECK(one.loop.wait(kj::mv(moved)).value());
  PSD_REQUIRE_OK(one.loop.wait(kj::mv(ends)));
  const auto document = parseDocument(one.all.read(kKey).text);
  PSD_REQUIRE_OK(document);
  REQUIRE(document->moved);
  CHECK(document->moved->move == 9);
}

TEST_CASE("a follower that cannot read the records of its primary reports the version it needs") {
  Serving one;
  FollowerRequest request{.follower = DaemonId{9},
                          .primary = DaemonId{7},
                          .name = "other",
                          .addresses = {parseAddress("tcp://other:1").value()}};
  for (const uint32_t records : {0u, kRecordFormat - 1}) {
    request.records = records;
    const auto refused = one.member.admit(request, nullptr);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
    CHECK(refused.message().find("start it with the primary's version of psd") != std::string::npos);
  }
  CHECK(one.member.status().follower == "");
  request.records = kRecordFormat;
  CHECK(one.member.admit(request, nullptr).ok());
}

/// A daemon that starts over `folder` while the cluster document has this text. Owned by one thread.
struct Stranger : Follows {
  Stranger(const std::string& text, const SavedFolder& folder) {
    all.put(kKey, text);
    member.start(folder);
  }
  bool says(const std::string& words) {
    return loop.until([&] { return member.status().waits.find(words) != std::string::npos; });
  }
};

ClusterDocument endedPlan() {
  ClusterDocument plan;
  plan.proposal = 1;
  plan.group = {.term = 2, .primary = DaemonId{3}, .standby = {}, .history = 5};
  plan.daemons[DaemonId{3}] = {parseAddress("tcp://three:1").value()};
  plan.ended = true;
  return plan;
}

TEST_CASE("a daemon that waits after a run names what it waits for, and the command that lets it serve") {
  Stranger one(documentText(endedPlan()), {FolderRecord{DaemonId{5}, 1, false, true}});
  CHECK(
      one.says("the run is over, and its last primary, at tcp://three:1, has its state, that of term 2; "
               "here is the state of term 1: start the daemon over its folder there or, if that is not "
               "possible, let this one serve its own state: psd recover --server tcp://one:1"));
  const ReplicaSetStatus status = one.member.status();
  CHECK(status.stateAsReplica() == "waiting");
  CHECK(status.term == 2);
  CHECK(status.folderTerm == 1);
  CHECK(status.others == std::vector<std::string>{"tcp://three:1"});
  CHECK(one.serving.rejection(ServingState::Peer::reader)
            ->message.find("this daemon does not serve: the run is over") == 0);
  SECTION("another daemon starts, and it follows") {
    ClusterDocument next = endedPlan();
    next.proposal = 2;
    next.ended = false;
    next.group.term = 3;
    one.all.put(kKey, documentText(next));
    CHECK(one.loop.until([&] { return one.primary.has_value() && one.member.status().waits.empty(); }));
    CHECK(one.member.status().stateAsReplica() == "following");
    CHECK_FALSE(one.host.ended);
  }
  SECTION("the operator starts it") {
    auto recovered = one.member.recover();
    REQUIRE(one.loop.until([&] { return one.primary.has_value(); }));
    one.primary->ended(ConnectionEnd::dead, Status(ErrorCode::unavailable, "no process listens"));
    PSD_REQUIRE_OK(one.loop.wait(kj::mv(recovered)));
    CHECK(one.loop.until([&] { return one.serving.term() == 3; }));
    CHECK(one.member.status().waits == "");
  }
  SECTION("a recovery that arrives while the document is being changed is refused") {
    auto first = one.member.recover().eagerlyEvaluate(nullptr);
    REQUIRE(one.loop.until([&] { return one.primary.has_value(); }));
    const PrimaryEvents answers = *std::exchange(one.primary, {});
    auto second = one.member.recover();
    REQUIRE(one.loop.until([&] { return one.primary.has_value(); }));
    one.engine.holdAnswers();
    one.engine.delayRequests(1);
    answers.ended(ConnectionEnd::dead, Status(ErrorCode::unavailable, "no process listens"));
    one.primary->ended(ConnectionEnd::dead, Status(ErrorCode::unavailable, "no process listens"));
    const Status refused = one.loop.wait(kj::mv(second));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::notReady);
    PSD_REQUIRE_OK(one.loop.wait(kj::mv(first)));
    one.engine.releaseAnswers();
    one.engine.deliverLate();
    CHECK(one.loop.until([&] { return one.serving.term() == 3; }));
  }
}

TEST_CASE("after the end of a run the last primary's folder starts the next one") {
  Stranger one(documentText(endedPlan()), {FolderRecord{DaemonId{3}, 2, false, true}});
  CHECK(one.loop.until([&] { return one.serving.term() == 3; }));
  one.host.saved = true;
  PSD_REQUIRE_OK(one.loop.wait(one.member.endRun("all is done")));
  const auto plan = parseDocument(one.all.read(kKey).text);
  PSD_REQUIRE_OK(plan);
  CHECK(plan->saved);
}

TEST_CASE("of two that wait for a dead primary each names the folder that is left") {
  ClusterDocument plan = endedPlan();
  plan.ended = false;
  Stranger one(documentText(plan), {FolderRecord{DaemonId{5}, 1, false, true}});
  REQUIRE(one.loop.until([&] { return one.primary.has_value(); }));
  std::string expected;
  SECTION("its own") {
    one.primary->another(0);
    expected =
        "the one at tcp://three:1 has its state; the newest state left is that of term 1: psd "
        "recover --server tcp://one:1";
  }
  SECTION("the other one's, which asks here") {
    const FollowerRequest request{.follower = DaemonId{9},
                                  .primary = DaemonId{3},
                                  .name = "other",
                                  .addresses = {parseAddress("tcp://other:1").value()},
                                  .folderTerm = 2};
    plan.group.term = 4;
    plan.proposal = 2;
    one.all.put(kKey, documentText(plan));
    REQUIRE(one.loop.until([&] { return one.member.status().term == 4; }));
    CHECK_FALSE(one.member.admit(request, nullptr).ok());
    expected = "the newest state left is that of term 2: psd recover --server tcp://other:1";
  }
  one.primary->ended(ConnectionEnd::dead, Status(ErrorCode::standby, "another process has the address"));
  CHECK(one.says(expected));
}

TEST_CASE("a daemon started where the model has moved away takes no part") {
  TestLoop loop;
  MemoryRegister all;
  MemoryEngine engine(all);
  ServingHost host;
  ServingState serving;
  ReplicaController member(
      Serving::terms(), DaemonId{7}, engine, serving, host, host, std::make_shared<Replicator>(),
      [](const PrimaryDial&) -> std::unique_ptr<PrimaryConnection> { return nullptr; }, loop.timer());
  serving.changeOutgoing([](auto& move) { move.adopt({5, {{"tcp://there:1"}}}); });
  member.start({});
  CHECK(member.status().role == "ended");
  auto left = member.leave();
  CHECK(loop.resolved(left));
  CHECK(engine.watches() == 0);
  CHECK(all.read(kKey).revision == 0);
}

}  // namespace
}  // namespace psd::group_member_test
