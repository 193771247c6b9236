// Moves of a model during which a daemon's disk or machine fails, at each write.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "test/unit/server/move/move_world.h"

namespace psd::move_disk_test {
namespace {

using namespace move_test;
using move_test::World;  // other tests define these names, too

bool isClean(const MemoryEnv& disk) {
  for (const auto& [path, bytes] : disk.files()) {
    if (path.find("checkpoint-") != std::string::npos || path.ends_with("/arriving.json")) return false;
  }
  return true;
}

const std::vector<float> kTrained{3, 3};

TEST_CASE("a moved model is durable before the move is committed, and no trainer is admitted until then") {
  for (const std::string durability : {"none", "checkpoint", "log"}) {
    World world(durability);
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    CHECK_FALSE(world.after->serving().admits());
    CHECK_FALSE(world.before->announcedAddresses());
    PSD_REQUIRE_OK(world.commit());
    CHECK(world.before->announcedAddresses() == kThere);
    CHECK(world.before->serving().outcome(kMove, false) == MoveOutcome::committed);
    PSD_REQUIRE_OK(world.commitAtTarget());
    CHECK(world.after->serving().admits());
    CHECK(counts(*world.after->model().store) == kTrained);
    world.startOld();
    CHECK(world.before->serving().outgoing().moved());
    if (durability == "none") continue;
    world.startNew();
    PSD_REQUIRE_OK(world.after->started);
    CHECK(counts(*world.after->model().store) == kTrained);
  }
}

TEST_CASE("a machine that fails while a model arrives has all of it or nothing") {
  for (const std::string durability : {"checkpoint", "log"}) {
    uint64_t operations = 0;
    {
      World world(durability);
      PSD_REQUIRE_OK(world.transferParts());
      const size_t from = world.newDisk.operations().size();
      PSD_REQUIRE_OK(world.install());
      PSD_REQUIRE_OK(world.commit());
      PSD_REQUIRE_OK(world.commitAtTarget());
      operations = world.newDisk.operations().size() - from;
    }
    REQUIRE(operations > 10);
    for (uint64_t at = 0; at < operations; at++) {
      const Survival survival = kSurvivals[at % std::size(kSurvivals)];
      CAPTURE(durability, at, static_cast<int>(survival));
      World world(durability);
      PSD_REQUIRE_OK(world.transferParts());
      world.newDisk.crashAt(world.newDisk.operations().size() + at, 8);
      bool counts = world.install().ok();
      if (counts) {
        PSD_REQUIRE_OK(world.commit());
        static_cast<void>(world.commitAtTarget());
      } else {
        world.giveUp();
        CHECK(world.before->announcedAddresses() == DaemonAddresses());
      }
      world.restartTarget(survival, counts);
      if (counts) {
        CHECK(testing::counts(*world.after->model().store) == kTrained);
      } else {
        CHECK(isClean(world.newDisk));
        CHECK(testing::counts(*world.before->model().store) == kTrained);
      }
    }
  }
}

TEST_CASE("a target whose disk cannot be written keeps nothing, and takes the model once it can") {
  for (const std::string durability : {"checkpoint", "log"}) {
    for (const std::string operation : {"append", "create", "createFolder", "rename", "sync", "syncFolder"}) {
      CAPTURE(durability, operation);
      World world(durability);
      PSD_REQUIRE_OK(world.transferParts());
      world.newDisk.fail({operation}, "no space left");
      const Status installed = world.install();
      CHECK_FALSE(installed.ok());
      CHECK(installed.message().find("no space left") != std::string::npos);
      world.giveUp();
      CHECK(world.before->announcedAddresses() == DaemonAddresses());
      CHECK(world.before->opened() == 1);
      CHECK_FALSE(world.after->hasModel());
      world.newDisk.heal();
      PSD_REQUIRE_OK(world.transferParts());
      PSD_REQUIRE_OK(world.install());
      PSD_REQUIRE_OK(world.commit());
      PSD_REQUIRE_OK(world.commitAtTarget());
      CHECK(counts(*world.after->model().store) == kTrained);
    }
  }
}

TEST_CASE("a mark that cannot be removed blocks admission until it can") {
  for (const std::string operation : {"remove", "syncFolder"}) {
    World world("checkpoint");
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    PSD_REQUIRE_OK(world.commit());
    world.newDisk.fail({operation}, "read only");
    CHECK_FALSE(world.commitAtTarget().ok());
    CHECK_FALSE(world.after->serving().admits());
    world.newDisk.heal();
    world.loop.wait(kj::evalLast([] {}));  // waiters for the first attempt are notified
    PSD_REQUIRE_OK(world.commitAtTarget());
    CHECK(world.after->serving().admits());
  }
}

TEST_CASE("a lead whose machine fails during its decision has the model or not, and never half") {
  uint64_t operations = 0;
  {
    World world("none");
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    const size_t from = world.oldDisk.operations().size();
    PSD_REQUIRE_OK(world.commit());
    operations = world.oldDisk.operations().size() - from;
  }
  REQUIRE(operations >= 4);
  for (const Survival survival : kSurvivals) {
    for (uint64_t at = 0; at <= operations; at++) {
      CAPTURE(static_cast<int>(survival), at);
      World world("none");
      PSD_REQUIRE_OK(world.transferParts());
      PSD_REQUIRE_OK(world.install());
      world.oldDisk.crashAt(world.oldDisk.operations().size() + at, 8);
      const bool known = world.commit().ok();
      CHECK(known == (at == operations));
      world.before.reset();
      world.oldDisk.restart(survival);
      world.startOld();
      PSD_REQUIRE_OK(world.before->started);
      if (known) CHECK(world.before->serving().outgoing().moved());
      if (world.before->serving().outgoing().moved()) {
        CHECK(world.before->serving().outcome(kMove, false) == MoveOutcome::committed);
        CHECK_FALSE(world.before->hasModel());
      } else {
        CHECK(world.before->serving().outcome(kMove, false) == MoveOutcome::unknown);
        CHECK(counts(*world.before->model().store) == kTrained);
      }
    }
  }
}

TEST_CASE("a lead whose disk fails keeps the model, or ends if the outcome is unknown") {
  for (const std::string operation : {"append", "create", "sync", "rename", "syncFolder"}) {
    CAPTURE(operation);
    World world("none");
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    world.oldDisk.fail({operation}, "no space left");
    const Status committed = world.commit();
    REQUIRE_FALSE(committed.ok());
    CHECK(committed.message().find("no space left") != std::string::npos);
    if (operation == "syncFolder") {  // the mark exists, and its removal was not durable
      CHECK(committed.error().code == ErrorCode::unavailable);
      CHECK(world.before->coordinator().end().requested());
      CHECK(world.before->serving().outcome(kMove, true) == MoveOutcome::underWay);
      CHECK_FALSE(world.before->announcedAddresses());
    } else {
      CHECK_FALSE(world.before->coordinator().end().requested());
      CHECK(world.before->serving().outcome(kMove, true) == MoveOutcome::stays);
      CHECK(world.before->announcedAddresses() == DaemonAddresses());
      CHECK(world.before->opened() == 1);
    }
  }
}

TEST_CASE("a daemon whose model moved away says how it can serve again, and names the mark file, if any") {
  for (const std::string durability : {"none", "log"}) {
    World world("none", durability);
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    PSD_REQUIRE_OK(world.commit());
    const std::string said = world.before->outgoing().refusal()->message;
    CHECK(said.find("to serve a model here again, start it ") != std::string::npos);
    CHECK((said.find("without '/old/moved.json'") != std::string::npos) == (durability == "log"));
  }
}

TEST_CASE("a target whose lead says that the move does not count is free again") {
  for (const std::string durability : {"none", "checkpoint", "log"}) {
    World world(durability);
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    world.giveUp();
    CHECK_FALSE(world.after->serving().admits());
    world.after->leadSays = MoveOutcome::stays;
    world.after->queryOutcome();
    CHECK_FALSE(world.after->hasModel());
    CHECK(isClean(world.newDisk));
    CHECK_FALSE(world.commitAtTarget().ok());
    world.after->train(2);  // its own run
    CHECK(counts(*world.after->model().store) == std::vector<float>{2, 2});
  }
}

TEST_CASE("a restarted target asks the lead, too") {
  for (const bool counts : {false, true}) {
    World world("checkpoint");
    PSD_REQUIRE_OK(world.transferParts());
    PSD_REQUIRE_OK(world.install());
    world.startNew();
    CHECK(world.after->serving().incoming().unread());
    CHECK_FALSE(world.after->hasModel());
    world.after->leadSays = counts ? MoveOutcome::committed : MoveOutcome::stays;
    world.after->queryOutcome();
    CHECK(world.after->hasModel() == counts);
    if (counts) {
      CHECK(testing::counts(*world.after->model().store) == kTrained);
    } else {
      CHECK(isClean(world.newDisk));
      world.after->train(2);
    }
  }
}

TEST_CASE("what the command knows not to count is discarded immediately, unless the disk fails") {
  World world("checkpoint");
  PSD_REQUIRE_OK(world.transferParts());
  PSD_REQUIRE_OK(world.install());
  world.before->outgoing().abandon(kMove, "a test");
  world.newDisk.fail({"remove"}, "read only");
  CHECK_FALSE(world.loop.wait(world.after->incoming().giveUp(kMove)).ok());
  CHECK_FALSE(world.after->serving().admits());
  world.newDisk.heal();
  world.after->incoming().abandon(kMove);  // the command disconnected
  world.after->leadSays = MoveOutcome::stays;
  world.after->queryOutcome();
  CHECK(isClean(world.newDisk));
}

TEST_CASE("a model that may count yields only to a move of its own lead") {
  World world("checkpoint");
  PSD_REQUIRE_OK(world.transferParts());
  PSD_REQUIRE_OK(world.install());
  IncomingMove& incoming = world.after->incoming();
  PSD_REQUIRE_OK(incoming.begin(kMove + 1, 1));
  MoveTerms others = world.quiet.terms;
  others.lead = {world.quiet.terms.lead.daemon + 1, {"tcp://elsewhere:1"}};
  const Status refused = incoming.check(kMove + 1, others, kSmallModel);
  CHECK(refused.error().code == ErrorCode::notReady);
  CHECK(refused.message().find("whose lead is tcp://old:1") != std::string::npos);
  CHECK_FALSE(world.loop.wait(incoming.install(kMove + 1, world.quiet.trainers)).ok());
  others.lead.addresses = {"tcp://old:1"};  // it was restarted
  PSD_REQUIRE_OK(incoming.check(kMove + 1, others, kSmallModel));
  // The first one counts after all.
  PSD_REQUIRE_OK(world.commit());
  PSD_REQUIRE_OK(world.loop.wait(incoming.commit(kMove)));
  CHECK(counts(*world.after->model().store) == kTrained);
  CHECK(world.after->serving().admits());
  CHECK_FALSE(incoming.imageDone(kMove + 1, 0, "copy/a").ok());
}

TEST_CASE("a partition that could not be installed blocks admission until nothing of it is left") {
  World world("checkpoint");
  PSD_REQUIRE_OK(world.transferParts());
  world.newDisk.fail({"syncFolder", "remove"}, "read only");
  CHECK_FALSE(world.install().ok());
  CHECK_FALSE(world.after->serving().admits());
  CHECK_FALSE(world.commitAtTarget().ok());
  CHECK_FALSE(world.loop.wait(world.after->incoming().giveUp(kMove)).ok());
  world.newDisk.heal();
  SECTION("as the command knows") { PSD_REQUIRE_OK(world.loop.wait(world.after->incoming().giveUp(kMove))); }
  SECTION("as the lead knows") {
    world.giveUp();
    world.after->leadSays = MoveOutcome::stays;
    world.after->queryOutcome();
  }
  CHECK(world.after->serving().admits());
  CHECK_FALSE(world.after->hasModel());
  CHECK(isClean(world.newDisk));
}

TEST_CASE("a lead in another process than the one that gave the model decides nothing") {
  World world("none", "none");
  PSD_REQUIRE_OK(world.transferParts());
  PSD_REQUIRE_OK(world.install());
  CHECK(world.before->serving().outcome(kMove, true) == MoveOutcome::underWay);
  CHECK(world.before->serving().outcome(kMove + 1, true) == MoveOutcome::stays);
  world.startOld();
  CHECK(world.before->serving().outcome(kMove, false) == MoveOutcome::unknown);
}

TEST_CASE("what a target accepts of an arriving model is limited, before and during the transfer") {
  World world("none");
  SECTION("parameters alone") {
    auto small = configOf(kNewFolder, "none", R"(, "limits": {"arriving_bytes": 65536})");
    const ModelSpec large{"small", {{"a", DType::f32, {20'000}}}};
    TestDaemon daemon(world.loop, world.newDisk, small);
    PSD_REQUIRE_OK(daemon.incoming().begin(kMove, 1));
    const auto terms = world.before->outgoing().terms();
    PSD_REQUIRE_OK(terms);
    const Status checked = daemon.incoming().check(kMove, *terms, large);
    CHECK(checked.error().code == ErrorCode::overloaded);
    CHECK(checked.message().find("limits.arriving_bytes is 65536") == 0);
  }
  SECTION("all that is given") {
    auto small = configOf(kNewFolder, "none", R"(, "limits": {"arriving_bytes": 65536})");
    TestDaemon daemon(world.loop, world.newDisk, small);
    PSD_REQUIRE_OK(daemon.incoming().begin(kMove, 2));
    const std::vector<std::byte> piece(30'000);
    PSD_REQUIRE_OK(daemon.incoming().image(kMove, 0, {"copy/a", "", piece}));
    PSD_REQUIRE_OK(daemon.incoming().image(kMove, 1, {"copy/a", "", piece}));
    CHECK(daemon.incoming().held() >= 60'000);
    const Status kept = daemon.incoming().image(kMove, 1, {"copy/a", "", piece});
    CHECK(kept.error().code == ErrorCode::overloaded);
    CHECK(kept.message().find("limits.arriving_bytes (65536)") != std::string::npos);
    daemon.incoming().abandon(kMove);
    CHECK(daemon.incoming().held() == 0);
    CHECK(daemon.serving().admits());
  }
  SECTION("files without bytes") {
    auto small = configOf(kNewFolder, "none", R"(, "limits": {"arriving_bytes": 65536})");
    TestDaemon daemon(world.loop, world.newDisk, small);
    PSD_REQUIRE_OK(daemon.incoming().begin(kMove, 1));
    Status kept;
    for (int i = 0; kept.ok() && i < 1'000; i++) {
      kept = daemon.incoming().image(kMove, 0, {"copy/" + std::to_string(i), "", {}});
    }
    CHECK(kept.error().code == ErrorCode::overloaded);
  }
}

TEST_CASE("arriving parts and published versions share a limit") {
  const std::string publish = R"(, "publish": {})";
  World publishing("none", "none", publish);
  auto small = configOf(kNewFolder, "none", publish + R"(, "limits": {"arriving_bytes": 65536})");
  TestDaemon daemon(publishing.loop, publishing.newDisk, small);
  PSD_REQUIRE_OK(daemon.started);
  const auto terms = publishing.before->outgoing().terms();
  PSD_REQUIRE_OK(terms);
  REQUIRE(terms->versions);
  for (uint64_t move = kMove; move < kMove + 3; move++) {  // an abandoned one holds nothing
    PSD_REQUIRE_OK(daemon.incoming().begin(move, 1));
    PSD_REQUIRE_OK(daemon.incoming().check(move, *terms, kSmallModel));
    const std::vector<std::byte> piece(30'000), little(1'000);
    PSD_REQUIRE_OK(daemon.incoming().image(move, 0, {"copy/a", "", piece}));
    PSD_REQUIRE_OK(daemon.incoming().versionImage(move, piece));
    for (int i = 0; i < 5; i++) PSD_REQUIRE_OK(daemon.incoming().versionImage(move, little));
    CHECK(daemon.incoming().held() >= 65'000);  // memory for more is reserved
    CHECK(daemon.incoming().held() <= 65'536);
    const Status kept = daemon.incoming().versionImage(move, piece);
    CHECK(kept.error().code == ErrorCode::overloaded);
    CHECK(kept.message().find("limits.arriving_bytes (65536)") != std::string::npos);
    daemon.incoming().abandon(move);
    CHECK(daemon.incoming().held() == 0);
  }
}

TEST_CASE("a move without heartbeats of its command is abandoned at both ends") {
  const bool settled = GENERATE(false, true);
  World world("log");
  world.begun.beats = true;
  PSD_REQUIRE_OK(world.transferParts());
  if (settled) PSD_REQUIRE_OK(world.install());
  const auto silent = [&](int looks) {
    for (int i = 0; i < looks; i++) {
      world.before->pass(2 * kj::SECONDS);
      world.after->pass(2 * kj::SECONDS);
    }
  };
  silent(5);
  CHECK_FALSE(world.before->announcedAddresses());
  world.before->outgoing().onHeartbeat(kMove);
  world.after->incoming().onHeartbeat(kMove);
  silent(5);
  CHECK_FALSE(world.before->announcedAddresses());
  CHECK_FALSE(world.after->serving().admits());
  silent(1);
  CHECK(world.before->announcedAddresses() == DaemonAddresses());
  CHECK(world.before->serving().outcome(kMove, true) == MoveOutcome::stays);
  CHECK_FALSE(world.commit().ok());
  world.after->leadSays = MoveOutcome::stays;
  world.after->queryOutcome();
  CHECK_FALSE(world.after->hasModel());
}

TEST_CASE("a silent move still counts where the decision was already made") {
  World world("log");
  world.begun.beats = true;
  PSD_REQUIRE_OK(world.transferParts());
  PSD_REQUIRE_OK(world.install());
  CHECK(world.after->serving().outcome(kMove, false) == MoveOutcome::underWay);
  PSD_REQUIRE_OK(world.commit());
  PSD_REQUIRE_OK(world.commitAtTarget());
  for (int i = 0; i < 10; i++) {
    world.before->pass(2 * kj::SECONDS);
    world.after->pass(2 * kj::SECONDS);
  }
  CHECK(world.before->announcedAddresses() == kThere);
  CHECK(world.after->hasModel());
  CHECK(world.after->serving().admits());
  CHECK(world.after->serving().outcome(kMove, false) == MoveOutcome::committed);
  CHECK(world.after->incoming().cameFrom() == std::vector<std::string>{"tcp://old:1"});
}

TEST_CASE("of two concurrent moves of a model the second is rejected at both ends, and changes nothing") {
  World world("none");
  constexpr uint64_t kOther = 0xbeef;
  auto refused = [&] {
    const Status there = world.before->outgoing().begin(kOther, {{"tcp://other:1"}}, std::chrono::minutes(1));
    CHECK(there.message() == "another move of the model is in progress");
    CHECK(world.before->outgoing().terms().message() == there.message());
    CHECK(world.after->incoming().begin(kOther, 1, false).message() ==
          "another move to this daemon is in progress");
    // Nor does it end the first one.
    world.before->outgoing().abandon(kOther, "a test");
    world.after->incoming().abandon(kOther);
  };
  PSD_REQUIRE_OK(world.transferParts());
  refused();
  PSD_REQUIRE_OK(world.install());
  CHECK(world.before->outgoing().terms().error().code == ErrorCode::notReady);
  PSD_REQUIRE_OK(world.commit());
  PSD_REQUIRE_OK(world.commitAtTarget());
  CHECK(counts(*world.after->model().store) == kTrained);
  CHECK(world.before->outgoing().terms().message() == "the model has moved to tcp://new:1");
}

}  // namespace
}  // namespace psd::move_disk_test
