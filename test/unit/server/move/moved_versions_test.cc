// Published versions in a move of their model, during which a daemon's disk or machine fails.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/publish/version_store.h"
#include "test/unit/server/move/move_world.h"

namespace psd::moved_versions_test {
namespace {

using namespace move_test;
using move_test::World;  // other tests define these names, too

const std::string kPublish = R"(, "publish": {"keep": 3})";

std::optional<std::string> bytesOf(VersionStore& store, uint64_t number) {
  const auto info = store.find(number);
  if (!info.ok()) return {};
  const auto bytes = store.read(number, 0, info->bytes);
  if (!bytes.ok()) return {};
  return std::string(reinterpret_cast<const char*>(bytes->data()), info->bytes);
}

/// A daemon that has published versions 1 and 2, and the target of its move.
struct Publishing : World {
  explicit Publishing(const std::string& newDurability, const std::string& oldDurability = "log")
      : World(newDurability, oldDurability, kPublish) {
    publish(2);
  }
  Result<VersionInfo> publishAt(TestDaemon& daemon) {
    return loop.wait(daemon.host().publisher()->publish());
  }
  void publish(int count) {
    for (int i = 0; i < count; i++) PSD_REQUIRE_OK(publishAt(*before));
  }
  VersionStore& source() { return *before->host().versions(); }
  VersionStore& target() { return *after->host().versions(); }
  void checkSame() {
    REQUIRE(target().versions().size() == source().versions().size());
    for (const VersionInfo& info : source().versions()) {
      CHECK(bytesOf(target(), info.number) == bytesOf(source(), info.number));
    }
    CHECK(target().history() == source().history());
  }
  void move() {
    PSD_REQUIRE_OK(transferParts());
    PSD_REQUIRE_OK(install());
    PSD_REQUIRE_OK(commit());
    PSD_REQUIRE_OK(commitAtTarget());
  }
};

TEST_CASE("published versions move with the model, and readers see them once the move is committed") {
  for (const std::string durability : {"checkpoint", "log"}) {
    CAPTURE(durability);
    Publishing world(durability);
    PSD_REQUIRE_OK(world.transferParts());
    // A version that is asked for while the model moves is not made.
    auto late = world.before->host().publisher()->publish();
    PSD_REQUIRE_OK(world.install());
    CHECK(world.target().hidden());
    CHECK_FALSE(world.publishAt(*world.after).ok());
    PSD_REQUIRE_OK(world.commit());
    CHECK(world.source().lease(7, 2, std::chrono::seconds(9), "reader").error().code ==
          ErrorCode::shuttingDown);
    PSD_REQUIRE_OK(world.commitAtTarget());
    CHECK_FALSE(world.target().hidden());
    world.checkSame();
    const auto next = world.publishAt(*world.after);
    PSD_REQUIRE_OK(next);
    CHECK(next->number == 3);
    CHECK(next->history == world.source().history());
    world.before->host().publisher()->stop();
    CHECK(world.loop.wait(kj::mv(late)).error().code == ErrorCode::shuttingDown);
    world.startNew();
    PSD_REQUIRE_OK(world.after->started);
    CHECK(bytesOf(world.target(), 2) == bytesOf(world.source(), 2));
    CHECK(world.publishAt(*world.after)->number == 4);
    world.startOld();
    CHECK(world.loop.wait(world.source().whenPublished(0)).error().code == ErrorCode::standby);
  }
}

TEST_CASE("versions in memory move along") {
  Publishing world("none", "none");
  world.move();
  world.checkSame();
  CHECK(world.publishAt(*world.after)->number == 3);
}

TEST_CASE("a daemon whose move was aborted publishes on, and the target has nothing of it") {
  for (const bool settled : {false, true}) {
    CAPTURE(settled);
    Publishing world("log");
    PSD_REQUIRE_OK(world.transferParts());
    auto waits = world.before->host().publisher()->publish();
    if (settled) PSD_REQUIRE_OK(world.install());
    world.after->leadSays = MoveOutcome::stays;
    world.giveUp();
    if (settled) world.after->queryOutcome();
    CHECK(world.loop.wait(kj::mv(waits))->number == 3);
    PSD_REQUIRE_OK(world.source().lease(7, 2, std::chrono::seconds(9), "reader"));
    REQUIRE(world.loop.until([&] { return !world.target().hidden(); }));
    CHECK(world.target().versions().empty());
    // The next move takes along what was published meanwhile.
    world.move();
    world.checkSame();
    CHECK(world.publishAt(*world.after)->number == 4);
  }
}

TEST_CASE("a move that begins while the versions of an aborted one are removed has its versions") {
  Publishing world("log");
  PSD_REQUIRE_OK(world.transferParts());
  world.giveUp();
  world.move();
  world.checkSame();
  CHECK(world.publishAt(*world.after)->number == 3);
}

TEST_CASE("a version whose file is damaged or missing does not keep the model from moving") {
  for (const bool missing : {false, true}) {
    CAPTURE(missing);
    Publishing world("log");
    world.publish(1);
    PSD_REQUIRE_OK(world.source().lease(7, 1, std::chrono::seconds(60), "reader"));
    const std::string path = versionPath(kOldFolder + "/versions", 1);
    PSD_REQUIRE_OK(missing ? world.oldDisk.remove(path)
                           : world.oldDisk.truncate(path, world.source().find(1)->bytes - 1));
    world.move();
    REQUIRE(world.target().versions().size() == 2);
    for (const uint64_t number : {2, 3}) {
      CHECK(bytesOf(world.target(), number) == bytesOf(world.source(), number));
    }
    CHECK(world.publishAt(*world.after)->number == 4);
  }
}

TEST_CASE("a machine that fails while versions arrive has all of them with the model, or nothing") {
  uint64_t operations = 0;
  {
    Publishing world("log");
    const size_t from = world.newDisk.operations().size();
    world.move();
    operations = world.newDisk.operations().size() - from;
  }
  REQUIRE(operations > 20);
  for (uint64_t at = 0; at < operations; at++) {
    const Survival survival = kSurvivals[at % std::size(kSurvivals)];
    CAPTURE(at, static_cast<int>(survival));
    Publishing world("log");
    world.newDisk.crashAt(world.newDisk.operations().size() + at, 8);
    const Status given = world.transferParts();
    const bool counts = given.ok() && world.install().ok();
    if (counts) {
      PSD_REQUIRE_OK(world.commit());
      static_cast<void>(world.commitAtTarget());
    } else {
      world.giveUp();
    }
    world.restartTarget(survival, counts);
    CHECK_FALSE(world.target().hidden());
    if (counts) {
      world.checkSame();
      CHECK(world.publishAt(*world.after)->number == 3);
    } else {
      CHECK(world.target().versions().empty());
      CHECK(world.publishAt(*world.before)->number == 3);
    }
  }
}

TEST_CASE("versions that cannot continue at a daemon are refused before trainers are asked to quiesce") {
  const auto refused = [](const std::string& durability, const std::string& more, const std::string& why,
                          uint64_t bytes = 100) {
    CAPTURE(why);
    Publishing world("log");
    TestDaemon target(world.loop, world.newDisk, configOf("/other", durability, more));
    PSD_REQUIRE_OK(target.started);
    auto terms = world.before->outgoing().terms();
    PSD_REQUIRE_OK(terms);
    REQUIRE(terms->versions);
    terms->versions->bytes = bytes;
    PSD_REQUIRE_OK(target.incoming().begin(kMove, 1));
    const Status checked = target.incoming().check(kMove, *terms, kSmallModel);
    REQUIRE_FALSE(checked.ok());
    INFO(checked.message());
    CHECK(checked.message().find(why) != std::string::npos);
  };
  refused("log", "", "publish is absent here, and the previous daemon publishes versions");
  refused("none", kPublish, "durability.type is none here");
  refused("log", R"(, "publish": {"as": "bf16"})", R"(publish.as is "bf16" here, "model" there)");
  refused("log", kPublish, "take 1125899906842624: raise it", 1ull << 50);
}

TEST_CASE("a daemon that publishes takes a model that was never published") {
  World world("log", "log");
  world.after.reset();
  TestDaemon target(world.loop, world.newDisk, configOf("/other", "log", kPublish));
  PSD_REQUIRE_OK(target.started);
  const auto terms = world.before->outgoing().terms();
  PSD_REQUIRE_OK(terms);
  PSD_REQUIRE_OK(target.incoming().begin(kMove, 1));
  PSD_REQUIRE_OK(target.incoming().check(kMove, *terms, kSmallModel));
}

}  // namespace
}  // namespace psd::moved_versions_test
