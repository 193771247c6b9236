#include "server/coordination/coordinator.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "common/types/bridge.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd {
namespace {

using testing::TestLoop;
using Role = ModelInitialization::Role;
using std::chrono::milliseconds;

const ModelSpec kModel{"net", {{"w", DType::f32, {8}}}};
const ModelSpec kOther{"other", {{"w", DType::f32, {9}}}};

/// A hosting side without parameters, which records the calls. Owned by one thread.
class FakeHosting final : public Hosting {
 public:
  kj::Promise<Status> provideModel(ModelSpec model, std::string) override {
    if (hosted && hosted->signature() != model.signature()) {
      return Status(ErrorCode::modelMismatch, "another model");
    }
    hosted = std::move(model);
    return Status();
  }
  bool hosts(const ModelSpec& model) const override {
    return hosted && hosted->signature() == model.signature();
  }
  bool hasModel() const override { return hosted.has_value(); }
  bool dropUninitialized() override {
    hosted.reset();
    return true;
  }
  kj::Promise<void> saveValues() override {
    recorded.push_back("keep values");
    return kj::READY_NOW;
  }
  Status mayTrain(const TrainerProcess&, uint32_t) const override { return mayTrainAnswer; }
  void processBegan(ProcessId id, const TrainerProcess&, std::shared_ptr<SessionCounters> counters) override {
    note("begins", id);
    newest = std::move(counters);
  }
  void processEnded(ProcessId id) override { note("ends", id); }
  void sessionBegan(ProcessId id, const TrainerRef&) override { note("session of", id); }
  void sessionEnded(ProcessId id) override { note("no session of", id); }
  void includeInRounds(const TrainerRef& trainer) override { countedIn.insert(trainer.session); }
  void excludeFromRounds(SessionId session) override { countedIn.erase(session); }
  kj::Promise<void> whenPushesDrained(ProcessId) override { return kj::READY_NOW; }
  void drop(ProcessId, Step step) override { dropped.push_back(step); }
  GuardedSamples& samplePlan() override { return plan; }
  void assigned(const PlanTerms&, const SampleAssignment&) override { assignments++; }
  kj::Promise<void> whenAssigned() override {
    if (slowDisk) return kj::NEVER_DONE;
    return kj::READY_NOW;
  }
  kj::Promise<Status> saveDepartedRanks(Departed departed) override {
    kept = std::move(departed);
    if (slowDisk) return kj::NEVER_DONE;
    return Status();
  }

  std::vector<std::string> takeCalls() { return std::exchange(recorded, {}); }

  std::optional<ModelSpec> hosted;
  Status mayTrainAnswer;
  std::shared_ptr<SessionCounters> newest;  // of the process that started last
  std::set<SessionId> countedIn;
  std::vector<Step> dropped;
  int assignments = 0;
  std::optional<Departed> kept;
  bool slowDisk = false;  // durable writes never complete
  GuardedSamples plan;
  std::vector<std::string> recorded;

 private:
  void note(const char* what, ProcessId id) { recorded.push_back(fmt::format("{} {}", what, id.value)); }
};

/// A coordinator and its world. Owned by one thread.
struct World {
  explicit World(const RunTerms& terms = {}) : coordinator(completed(terms), serving, hosting, metrics) {
    coordinator.begin({});
  }

  static RunTerms completed(RunTerms terms) {
    if (terms.ranksMax == 0) terms.ranksMax = 100;
    if (terms.lease.count() == 0) terms.lease = milliseconds(1000);
    return terms;
  }
  Result<SessionGrant> join(uint32_t rank, uint32_t worldSize, uint64_t incarnation,
                            const ModelSpec& model = kModel) {
    Candidate candidate{.rank = Rank{rank}, .worldSize = worldSize, .incarnation = incarnation};
    return loop.wait(coordinator.join(candidate, {}, model));
  }
  SessionGrant mustJoin(uint32_t rank, uint32_t worldSize, uint64_t incarnation) {
    auto grant = join(rank, worldSize, incarnation);
    PSD_REQUIRE_OK(grant);
    return *grant;
  }
  DaemonStatus status() const {
    DaemonStatus status;
    coordinator.fillStatus(status);
    return status;
  }

  /// As an OutgoingMove does.
  void startMove(uint64_t move, uint32_t daemons) {
    serving.changeOutgoing([&](auto& state) { state.begin({move, {}}, 0); });
    coordinator.startMove({move, daemons});
  }
  void endMove(uint64_t move, const DaemonAddresses& movedTo) {
    serving.changeOutgoing([&](auto& state) {
      if (movedTo.empty()) return static_cast<void>(state.abandon(move));
      state.adopt({move, movedTo});
    });
    coordinator.endMove(movedTo);
  }

  TestLoop loop;
  FakeHosting hosting;
  ServingState serving;
  DaemonMetrics metrics;
  Coordinator coordinator;
};

TEST_CASE("the session of a bridge says so, also when it resumes") {
  World world;
  CHECK_FALSE(world.mustJoin(0, 1, 5).trainer.bridges);
  const Candidate bridge{.rank = kBridgeRank, .incarnation = 7, .bridges = true};
  for (const bool resumed : {false, true}) {
    const auto grant = world.loop.wait(world.coordinator.join(bridge, {}, kModel));
    PSD_REQUIRE_OK(grant);
    CHECK(grant->resumed == resumed);
    CHECK(grant->trainer.bridges);
  }
}

TEST_CASE("Coordinator: values that a trainer had at a previous daemon are reported with its step") {
  World world;
  const SessionGrant first = world.mustJoin(0, 1, 11);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, Step{812})));
  const DaemonEvents events = world.coordinator.events().after(0);
  CHECK(events.events.back().kind == "serving");
  CHECK(events.events.back().text.find(" had at its step 812; updates that it had not pulled are missing") !=
        std::string::npos);
}

TEST_CASE("Coordinator: the first trainer is the initializer, and the next one when it is lost") {
  World world;
  const SessionGrant first = world.mustJoin(0, 2, 11), second = world.mustJoin(1, 2, 12);
  CHECK(first.role == Role::initialize);
  CHECK(second.role == Role::wait);
  CHECK(world.status().state == "waiting for a model");
  auto waits = world.coordinator.awaitModel(second.trainer.session);
  CHECK_FALSE(world.loop.resolved(waits));
  CHECK_FALSE(world.loop.wait(world.coordinator.initialized(second.trainer.session, {})).ok());
  world.coordinator.disconnected(first.trainer.session, first.attachment);  // no grace
  CHECK(world.loop.wait(kj::mv(waits)).value() == Role::initialize);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(second.trainer.session, {})));
  CHECK(world.hosting.takeCalls().back() == "keep values");
  CHECK(world.status().state == "serving");
  CHECK(world.mustJoin(0, 2, 13).role == Role::go);
}

TEST_CASE("Coordinator: a trainer that disconnects before its join is answered frees its rank") {
  World world({.exitWhenDone = true, .keepsRanks = true});
  world.hosting.slowDisk = true;
  const SessionGrant left = world.mustJoin(0, 2, 11);
  auto goodbye = world.coordinator.leave(left.trainer.session);
  auto join = world.coordinator.join({.rank = Rank{0}, .worldSize = 2, .incarnation = 12}, {}, kModel);
  CHECK_FALSE(world.loop.resolved(join));  // waits for the disk
  CHECK(world.status().trainers.size() == 1);
  join = nullptr;
  CHECK(world.status().trainers.empty());
}

TEST_CASE("Coordinator: a model that was not initialized is dropped with the last trainer") {
  World world;
  const SessionGrant only = world.mustJoin(0, 1, 11);
  CHECK(world.hosting.hosted);
  world.loop.wait(world.coordinator.leave(only.trainer.session));
  CHECK_FALSE(world.hosting.hosted);
  PSD_REQUIRE_OK(world.join(0, 1, 12, kOther));
  CHECK(world.join(1, 2, 13).error().code == ErrorCode::modelMismatch);
}

TEST_CASE("Coordinator: the hosting side is notified of processes and their sessions, in order") {
  using Calls = std::vector<std::string>;
  World world({.grace = milliseconds(500)});
  const SessionGrant first = world.mustJoin(0, 2, 11), other = world.mustJoin(1, 2, 12);
  CHECK(world.hosting.takeCalls() == Calls{"begins 1", "session of 1", "begins 2", "session of 2"});
  CHECK(world.hosting.countedIn == std::set{first.trainer.session, other.trainer.session});

  world.coordinator.disconnected(first.trainer.session, first.attachment);
  const SessionGrant back = world.mustJoin(0, 2, 11);  // within the grace period: the session continues
  CHECK(back.resumed);
  CHECK(back.trainer.session == first.trainer.session);
  CHECK(back.attachment == first.attachment + 1);
  CHECK(world.hosting.takeCalls() == Calls{});

  world.coordinator.disconnected(first.trainer.session, first.attachment);  // of the older connection
  CHECK(world.status().trainers[0].connected);

  world.loop.wait(world.coordinator.leave(other.trainer.session));
  CHECK(world.hosting.takeCalls() == Calls{"no session of 2", "ends 2"});
  CHECK(world.hosting.countedIn == std::set{first.trainer.session});
  CHECK(other.fence->attachment == SessionFence::kEnded);
}

TEST_CASE("Coordinator: only its owner resumes a session and attaches to it") {
  World world({.grace = milliseconds(500)});
  const Candidate owner{.rank = Rank{0},
                        .worldSize = 2,
                        .host = "node-7",
                        .incarnation = 11,
                        .owner = "token 'a'",
                        .asker = "10.0.0.1:1 as 'a'"};
  Candidate thief = owner;
  thief.owner = "token 'b'";
  thief.asker = "10.0.0.2:2 as 'b'";
  const auto join = [&](const Candidate& candidate) {
    return world.loop.wait(world.coordinator.join(candidate, {}, kModel));
  };
  const auto first = join(owner);
  PSD_REQUIRE_OK(first);
  const auto attach = [&](const Candidate& candidate) {
    return world.coordinator.attach(
        {candidate.rank, candidate.incarnation, first->attachment, candidate.owner, candidate.asker});
  };
  CHECK(attach(thief).error().code == ErrorCode::forbidden);
  CHECK(attach(owner).ok());
  CHECK(join(thief).error().code == ErrorCode::forbidden);
  const DaemonEvents events = world.coordinator.events().after(1);
  REQUIRE(events.events.size() == 2);
  for (const DaemonEvent& event : events.events) {
    CHECK(event.kind == "refused");
    CHECK(event.by == thief.asker);
    CHECK(event.text.find("; asked by 10.0.0.2:2 as 'b'") != std::string::npos);
  }
  CHECK(world.status().trainers[0].process.size() == 8);
  CHECK(world.status().trainers[0].process != "0000000b");
  const auto back = join(owner);
  PSD_REQUIRE_OK(back);
  CHECK(back->resumed);
}

TEST_CASE("Coordinator: a trainer that an operator removes receives that reason") {
  World world;
  const SessionGrant first = world.mustJoin(0, 1, 11);
  CHECK(first.fence->check(first.attachment).ok());
  PSD_REQUIRE_OK(world.coordinator.remove(Rank{0}, "token 'ops' at 10.0.0.9:9"));
  const std::string why = "removed by an operator (token 'ops' at 10.0.0.9:9)";
  CHECK(first.fence->check(first.attachment).message() == "the daemon counts this trainer as gone: " + why);
  CHECK(world.join(0, 1, 11).message().find("removed by an operator (token 'ops'") != std::string::npos);
  const DaemonEvents events = world.coordinator.events().after(0);
  const auto removed = std::ranges::find(events.events, "removed", &DaemonEvent::kind);
  REQUIRE(removed != events.events.end());
  CHECK(removed->by == "token 'ops' at 10.0.0.9:9");
}

TEST_CASE("Coordinator: a lost process that rejoins is recognized, another one replaces it") {
  using Calls = std::vector<std::string>;
  World world;
  const SessionGrant other = world.mustJoin(1, 2, 10);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(other.trainer.session, {})));
  const SessionGrant first = world.mustJoin(0, 2, 11);
  world.hosting.takeCalls();
  world.coordinator.disconnected(first.trainer.session, first.attachment);
  CHECK(world.hosting.takeCalls() == Calls{"no session of 2"});
  CHECK(world.status().trainersLost == 1);

  const SessionGrant back = world.mustJoin(0, 2, 11);
  CHECK_FALSE(back.resumed);
  CHECK(back.process == first.process);
  CHECK(world.hosting.takeCalls() == Calls{"session of 2"});
  CHECK(world.join(0, 2, 12).error().code == ErrorCode::rankTaken);

  world.coordinator.disconnected(back.trainer.session, back.attachment);
  CHECK(world.mustJoin(0, 2, 12).process != first.process);
  CHECK(world.hosting.takeCalls() == Calls{"no session of 2", "ends 2", "begins 3", "session of 3"});
}

TEST_CASE("Coordinator: a trainer without a heartbeat within its lease is lost") {
  World world;
  const SessionGrant heard = world.mustJoin(0, 2, 11);
  const auto counters = world.hosting.newest;
  const SessionGrant silent = world.mustJoin(1, 2, 12);
  const milliseconds step = world.coordinator.expireLeases(milliseconds(0));
  for (milliseconds now = step; now <= milliseconds(2000); now += step) {
    counters->lastSeenMs.set(static_cast<uint64_t>(now.count()) + 1);
    world.coordinator.expireLeases(now);
  }
  CHECK(world.hosting.countedIn == std::set{heard.trainer.session});
  CHECK(silent.fence->attachment == SessionFence::kEnded);
  CHECK(heard.fence->attachment != SessionFence::kEnded);
}

TEST_CASE("Coordinator: a trainer that the hosting side rejects is not admitted") {
  World world;
  world.hosting.mayTrainAnswer = Status(ErrorCode::rankTaken, "taken over");
  CHECK(world.join(0, 1, 11).error().code == ErrorCode::rankTaken);
  CHECK(world.hosting.takeCalls().empty());
  CHECK_FALSE(world.hosting.hosted);  // not claimed
  CHECK(world.status().trainers.empty());
}

TEST_CASE("Coordinator: the run ends when all trainers have joined and left, once that is durable") {
  World world({.exitWhenDone = true, .keepsRanks = true});
  const SessionGrant first = world.mustJoin(0, 2, 11);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  const SessionGrant second = world.mustJoin(1, 2, 12);
  world.loop.wait(world.coordinator.leave(first.trainer.session));
  CHECK(world.hosting.kept == Departed{2, {Rank{0}}});
  CHECK_FALSE(world.coordinator.end().requested());
  world.loop.wait(world.coordinator.leave(second.trainer.session));
  CHECK(world.hosting.kept == Departed{2, {Rank{0}, Rank{1}}});
  world.loop.wait(world.coordinator.end().whenBegun());
  CHECK(world.coordinator.close());
  CHECK(world.join(0, 2, 13).error().code == ErrorCode::shuttingDown);
}

TEST_CASE("Coordinator: a run resumes if a previous daemon saved which ranks were done") {
  const TestLoop loop;
  FakeHosting hosting;
  ServingState serving;
  DaemonMetrics metrics;
  RunTerms terms = World::completed({.worldSize = 2, .exitWhenDone = true, .keepsRanks = true});
  SECTION("with the remaining trainers") {
    Coordinator coordinator(terms, serving, hosting, metrics);
    CHECK(coordinator.begin({.hasValues = true, .departed = Departed{2, {Rank{0}}}}));
    CHECK_FALSE(coordinator.end().requested());
  }
  SECTION("and ends if none is left") {
    Coordinator coordinator(terms, serving, hosting, metrics);
    CHECK(coordinator.begin({.hasValues = true, .departed = Departed{2, {Rank{0}, Rank{1}}}}));
    CHECK(coordinator.end().requested());
  }
  SECTION("without an end if none is configured, as with the daemon that they left") {
    terms.exitWhenDone = false;
    Coordinator coordinator(terms, serving, hosting, metrics);
    CHECK(coordinator.begin({.hasValues = true, .departed = Departed{2, {Rank{0}, Rank{1}}}}));
    CHECK_FALSE(coordinator.end().requested());
  }
  SECTION("not if that had another world size") {
    Coordinator coordinator(terms, serving, hosting, metrics);
    CHECK_FALSE(coordinator.begin({.hasValues = true, .departed = Departed{3, {Rank{0}}}}));
  }
}

TEST_CASE("Coordinator: samples of a departed trainer go to another, and its pushes of them are dropped") {
  World world;
  const SessionGrant first = world.mustJoin(0, 2, 11);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  const SessionGrant second = world.mustJoin(1, 2, 12);
  SampleAssigner& samples = world.coordinator.samples();
  const SamplesRequest request{.step = Step{1}, .count = 10, .samples = 10, .epochs = 1, .wait = true};
  const auto taken = world.loop.wait(samples.take(first.trainer.session, request));
  PSD_REQUIRE_OK(taken);
  CHECK(taken->range == SampleRange{0, 0, 10});
  CHECK(world.hosting.assignments == 1);

  auto waits = samples.take(second.trainer.session, request);
  CHECK_FALSE(world.loop.resolved(waits));
  CHECK(world.hosting.countedIn == std::set{first.trainer.session});  // one that waits is not waited for
  world.coordinator.disconnected(first.trainer.session, first.attachment);
  const auto handed = world.loop.wait(kj::mv(waits));
  PSD_REQUIRE_OK(handed);
  CHECK(handed->range == SampleRange{0, 0, 10});
  CHECK(world.hosting.dropped == std::vector{Step{1}});
  CHECK(world.hosting.countedIn == std::set{second.trainer.session});

  samples.stepOver(second.process, Step{1}, true);
  SamplesRequest next = request;
  next.step = Step{2};
  CHECK(world.loop.wait(samples.take(second.trainer.session, next))->finished);
}

TEST_CASE("Coordinator: samples are announced once their assignment would survive a restart") {
  World world;
  const SessionGrant first = world.mustJoin(0, 1, 11);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  world.hosting.slowDisk = true;
  const SamplesRequest request{.step = Step{1}, .count = 10, .samples = 10, .epochs = 1};
  auto taken = world.coordinator.samples().take(first.trainer.session, request);
  CHECK_FALSE(world.loop.resolved(taken));
  CHECK(world.hosting.assignments == 1);
}

TEST_CASE("Coordinator: at the end all waiters are notified, and a restart keeps trainers joined") {
  World world;
  const SessionGrant first = world.mustJoin(0, 2, 11), second = world.mustJoin(1, 2, 12);
  auto waits = world.coordinator.awaitModel(second.trainer.session);
  world.coordinator.requestStop("SIGTERM", EndOf::daemon);
  CHECK(world.loop.wait(kj::mv(waits)).error().code == ErrorCode::unavailable);
  world.coordinator.disconnected(first.trainer.session, first.attachment);
  CHECK(world.status().trainers.size() == 2);
  world.coordinator.requestStop("SIGINT");  // the run ends after all
  CHECK_FALSE(world.coordinator.end().restarting());
  CHECK(world.loop.wait(world.coordinator.samples().take(second.trainer.session, {})).error().code ==
        ErrorCode::shuttingDown);
  world.coordinator.endDisconnected();
  CHECK(world.status().trainers.size() == 1);
  CHECK_FALSE(world.coordinator.close());
}

TEST_CASE("Coordinator: trainers quiesced for a move continue here when it is abandoned") {
  World world;
  const SessionGrant first = world.mustJoin(0, 3, 11), second = world.mustJoin(1, 3, 12);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  auto asked = world.coordinator.pause().whenAnnounced(0);
  CHECK_FALSE(world.loop.resolved(asked));
  world.startMove(77, 3);
  const MoveNotice notice = world.loop.wait(kj::mv(asked));
  CHECK((notice.move == 77 && notice.daemons == 3));
  auto again = world.coordinator.pause().whenAnnounced(77);
  CHECK_FALSE(world.loop.resolved(again));

  auto all = world.coordinator.pause().whenAllQuiesced();
  auto one = world.coordinator.quiesce(first.trainer.session, 77, "");
  CHECK_FALSE(world.loop.resolved(one));
  CHECK_FALSE(world.loop.resolved(all));
  CHECK(world.coordinator.pause().missing() == "1");
  CHECK(world.hosting.countedIn == std::set{second.trainer.session});  // a quiesced one is not waited for
  CHECK(world.join(2, 3, 13).error().code == ErrorCode::unavailable);
  auto other = world.coordinator.quiesce(second.trainer.session, 77, "");
  PSD_REQUIRE_OK(world.loop.wait(kj::mv(all)));
  CHECK(world.serving.outgoing().phase() == OutgoingMoveState::Phase::settling);

  world.endMove(77, {});
  CHECK(world.loop.wait(kj::mv(one)).value().empty());
  CHECK(world.loop.wait(kj::mv(other)).value().empty());
  CHECK(world.hosting.countedIn == std::set{first.trainer.session, second.trainer.session});
  PSD_REQUIRE_OK(world.join(2, 3, 13));
  // Of a move that is over, or is unknown.
  CHECK(world.loop.wait(world.coordinator.quiesce(first.trainer.session, 77, "")).value().empty());
}

TEST_CASE("Coordinator: all joined trainers quiesce, and receive the model's new address") {
  World world({.grace = milliseconds(500)});
  const SessionGrant first = world.mustJoin(0, 2, 11), second = world.mustJoin(1, 2, 12);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  world.startMove(77, 2);
  auto all = world.coordinator.pause().whenAllQuiesced();
  auto one = world.coordinator.quiesce(first.trainer.session, 77, "");
  CHECK_FALSE(world.loop.resolved(one));
  // Its connection breaks: it is not quiesced, and may rejoin; a new trainer may not join.
  one = nullptr;
  CHECK(world.hosting.countedIn.contains(first.trainer.session));
  CHECK(world.mustJoin(0, 2, 11).resumed);
  one = world.coordinator.quiesce(first.trainer.session, 77, "");
  CHECK_FALSE(world.loop.resolved(all));
  PSD_REQUIRE_OK(world.coordinator.remove(Rank{1}, "an operator"));  // a departed one is not waited for
  PSD_REQUIRE_OK(world.loop.wait(kj::mv(all)));
  CHECK(world.join(0, 2, 11).error().code == ErrorCode::unavailable);  // from now on a known trainer cannot
                                                                       // rejoin either
  const DaemonAddresses there{{"tcp://a:1", "unix:///a"}, {"tcp://b:1"}};
  world.endMove(77, there);
  CHECK(world.loop.wait(kj::mv(one)).value() == there);
  CHECK_FALSE(world.hosting.countedIn.contains(second.trainer.session));
}

TEST_CASE("Coordinator: a trainer that cannot move keeps the model where it is") {
  World world;
  const SessionGrant only = world.mustJoin(4, 5, 11);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(only.trainer.session, {})));
  world.startMove(77, 2);
  auto all = world.coordinator.pause().whenAllQuiesced();
  CHECK(
      world.loop.wait(world.coordinator.quiesce(only.trainer.session, 77, "it is tied up")).value().empty());
  CHECK(world.loop.wait(kj::mv(all)).message() == "rank 4: it is tied up");
}

TEST_CASE("Coordinator: no trainer waits for samples while trainers are to quiesce") {
  World world;
  const SessionGrant first = world.mustJoin(0, 2, 11), second = world.mustJoin(1, 2, 12);
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.initialized(first.trainer.session, {})));
  const SamplesRequest request{.step = Step{1}, .count = 10, .samples = 10, .epochs = 1, .wait = true};
  PSD_REQUIRE_OK(world.loop.wait(world.coordinator.samples().take(first.trainer.session, request)));
  auto waits = world.coordinator.samples().take(second.trainer.session, request);
  CHECK_FALSE(world.loop.resolved(waits));
  world.startMove(77, 2);
  const auto none = world.loop.wait(kj::mv(waits));
  PSD_REQUIRE_OK(none);
  CHECK_FALSE((none->range || none->finished));
  CHECK(world.hosting.countedIn.contains(second.trainer.session));
}

}  // namespace
}  // namespace psd
