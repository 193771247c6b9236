// Published versions that move with their model from one store to another.

#include <set>
#include <span>
#include <string>
#include <vector>

#include <kj/async.h>

#include "server/publish/version_store.h"
#include "server/replica/memory_files.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/publish/small_versions.h"

namespace psd::version_moves_test {
namespace {

using namespace testing;
using namespace small_versions;
using std::chrono::seconds;

constexpr VersionLedger::Terms kWide{.keep = 3, .bytes = 1 << 20, .leases = 16};

Result<std::shared_ptr<VersionStore>> openWide(Env& env) {
  return VersionStore::open({.env = borrowed(env), .folder = kFolder}, kWide);
}

/// The bytes of the oldest version above `after`, as they are sent; empty: there is none.
std::vector<std::byte> sent(VersionStore& from, uint64_t after, VersionStore::Given& given) {
  MemoryFiles files;
  const auto done = from.giveTo(files, after);
  PSD_REQUIRE_OK(done);
  given = *done;
  if (given.number == 0) return {};
  const auto file = files.open(given.path);
  PSD_REQUIRE_OK(file);
  std::vector<std::byte> bytes((*file)->size());
  PSD_REQUIRE_OK((*file)->read(0, bytes));
  return bytes;
}

Status copyAll(VersionStore& from, VersionStore& to, uint64_t after = 0) {
  VersionStore::Given given{.number = after};
  for (;;) {
    const std::vector<std::byte> bytes = sent(from, given.number, given);
    if (given.number == 0) return {};
    PSD_RETURN_IF_ERROR(to.arrive(bytes, given.oldest));
  }
}

/// A source with versions 1 to 3, and a target.
struct Two {
  MemoryEnv sourceDisk, targetDisk;
  std::shared_ptr<VersionStore> source, target;

  Two() : source(opened(sourceDisk)), target(opened(targetDisk)) {
    for (uint8_t i = 1; i <= 3; i++) PSD_REQUIRE_OK(publish(*source, i));
  }
  static std::shared_ptr<VersionStore> opened(Env& env) {
    auto store = openWide(env);
    PSD_REQUIRE_OK(store);
    return *std::move(store);
  }
  void restartTarget() {
    target = nullptr;
    targetDisk.restartProcess();
    target = opened(targetDisk);
  }
  /// All but the commit.
  void moveVersions() {
    PSD_REQUIRE_OK(target->beginArrival());
    PSD_REQUIRE_OK(copyAll(*source, *target));
    source->freeze({ErrorCode::standby, "it moves"});
    PSD_REQUIRE_OK(target->endArrival(source->continuation()));
  }
  void checkSame() {
    REQUIRE(numbersOf(*target) == numbersOf(*source));
    for (const uint64_t number : numbersOf(*source)) {
      CHECK(bytesOf(*target, number) == bytesOf(*source, number));
      CHECK(target->find(number)->history == source->find(number)->history);
    }
  }
};

TEST_CASE("Version store: a frozen store makes, removes and leases nothing until it is thawed") {
  Two stores;
  VersionStore& store = *stores.source;
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  const std::string bytes = bytesOf(store, 3);
  store.freeze({ErrorCode::standby, "it moves"});
  CHECK(publish(store, 4).error().code == ErrorCode::standby);
  CHECK(store.lease(7, 3, seconds(60), "reader").message() == "it moves");
  CHECK(bytesOf(store, 3) == bytes);
  auto thawed = store.whenThawed();
  CHECK_FALSE(thawed.poll(scope));
  store.follow({.keep = 1, .bytes = 1 << 20, .leases = 16});
  store.prune();
  CHECK(numbersOf(store) == std::vector<uint64_t>{1, 2, 3});
  SECTION("thawed") {
    store.thaw();
    thawed.wait(scope);
    PSD_REQUIRE_OK(store.lease(7, 3, seconds(60), "reader"));
    CHECK(publish(store, 4)->number == 4);
  }
  SECTION("the model has moved") {
    store.leave({ErrorCode::shuttingDown, "the model has moved"});
    store.thaw();
    CHECK_FALSE(thawed.poll(scope));
    store.end({ErrorCode::shuttingDown, "the daemon ends"});
    thawed.wait(scope);
    CHECK(store.lease(7, 3, seconds(60), "reader").message() == "the model has moved");
    CHECK(bytesOf(store, 3) == bytes);
  }
}

TEST_CASE("Version store: moved versions keep number, history and bytes, and the next one continues them") {
  for (const bool restarts : {false, true}) {
    CAPTURE(restarts);
    Two stores;
    stores.moveVersions();
    if (restarts) {
      stores.restartTarget();
      CHECK(stores.target->hideUncommitted());
    }
    stores.checkSame();
    CHECK(stores.target->hidden());
    CHECK(publish(*stores.target, 4).error().code == ErrorCode::standby);
    stores.target->show();
    const auto next = publish(*stores.target, 4);
    PSD_REQUIRE_OK(next);
    CHECK(next->number == 4);
    CHECK(next->history == stores.source->history());
    stores.restartTarget();
    CHECK_FALSE(stores.target->hideUncommitted());  // they are its own by now
    CHECK(numbersOf(*stores.target) == std::vector<uint64_t>{2, 3, 4});
    CHECK(stores.target->history() == stores.source->history());
  }
}

TEST_CASE("Version store: moved versions are announced once the move is committed") {
  Two stores;
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  auto waits = stores.target->whenPublished(0);
  stores.moveVersions();
  CHECK_FALSE(waits.poll(scope));
  auto later = stores.target->whenPublished(0);
  CHECK_FALSE(later.poll(scope));
  stores.target->show();
  CHECK(waits.wait(scope)->number == 3);
  CHECK(later.wait(scope)->number == 3);
}

TEST_CASE("Version store: a version that an aborted move could not read moves with the next one") {
  Two stores;
  PSD_REQUIRE_OK(stores.source->lease(7, 2, seconds(60), "reader"));
  VersionStore::Given given;
  stores.sourceDisk.fail({"open"}, "too many open files");
  CHECK(sent(*stores.source, 0, given).empty());
  stores.sourceDisk.heal();
  CHECK(stores.source->continuation().numbers.empty());
  stores.moveVersions();
  stores.checkSame();
  CHECK(stores.source->continuation().numbers == std::vector<uint64_t>{1, 2, 3});
  CHECK(stores.source->continuation().leases.contains(2));
}

TEST_CASE("Version store: no number is given again after a move") {
  Two stores;
  // The newest version has failed after it had a number.
  stores.sourceDisk.fail({"rename"}, "no space left on device");
  CHECK_FALSE(publish(*stores.source, 4).ok());
  stores.sourceDisk.heal();
  stores.moveVersions();
  stores.target->show();
  CHECK(publish(*stores.target, 5)->number == 5);
}

TEST_CASE("Version store: versions of an aborted move are gone, also after a restart") {
  const auto isEmpty = [](Two& stores) {
    CHECK(numbersOf(*stores.target).empty());
    CHECK_FALSE(stores.target->hidden());
    for (const auto& [path, bytes] : stores.targetDisk.files()) CHECK_FALSE(path.ends_with(".safetensors"));
    const auto first = publish(*stores.target, 9);
    PSD_REQUIRE_OK(first);
    CHECK(first->number == 1);
    CHECK(first->history != stores.source->history());
  };
  Two stores;
  SECTION("while they arrive") {
    PSD_REQUIRE_OK(stores.target->beginArrival());
    PSD_REQUIRE_OK(copyAll(*stores.source, *stores.target, 2));
    SECTION("cancelled") { PSD_REQUIRE_OK(stores.target->cancelArrival()); }
    SECTION("restarted") { stores.restartTarget(); }
    isEmpty(stores);
  }
  SECTION("when all are here") {
    stores.moveVersions();
    PSD_REQUIRE_OK(stores.target->cancelArrival());
    SECTION("restarted") { stores.restartTarget(); }
    isEmpty(stores);
  }
  SECTION("once a full disk has room, or files can be removed") {
    stores.moveVersions();
    const auto failing = GENERATE(as<std::set<std::string>>(), std::set<std::string>{"create", "append"},
                                  std::set<std::string>{"remove"});
    stores.targetDisk.fail(failing, "it is full");
    CHECK(stores.target->cancelArrival().error().code == ErrorCode::io);
    CHECK(stores.target->hidden());
    stores.targetDisk.heal();
    SECTION("cancelled again") { PSD_REQUIRE_OK(stores.target->cancelArrival()); }
    SECTION("as part of the next move") {
      PSD_REQUIRE_OK(stores.target->beginArrival());
      PSD_REQUIRE_OK(stores.target->cancelArrival());
    }
    isEmpty(stores);
  }
  SECTION("and another move follows") {
    stores.moveVersions();
    stores.source->thaw();
    PSD_REQUIRE_OK(publish(*stores.source, 4));
    stores.moveVersions();
    stores.target->show();
    stores.checkSame();
  }
}

TEST_CASE("Version store: a disk that fails at each write leaves all moved versions or none") {
  size_t operations = 0;
  {
    Two stores;
    const size_t from = stores.targetDisk.operations().size();
    stores.moveVersions();
    operations = stores.targetDisk.operations().size() - from;
  }
  for (size_t at = 0; at < operations; at++) {
    const Survival survival = kSurvivals[at % std::size(kSurvivals)];
    CAPTURE(at, static_cast<int>(survival));
    Two stores;
    stores.targetDisk.crashAt(stores.targetDisk.operations().size() + at, 8);
    Status moved = stores.target->beginArrival();
    if (moved.ok()) moved = copyAll(*stores.source, *stores.target);
    if (moved.ok()) moved = stores.target->endArrival(stores.source->continuation());
    stores.target = nullptr;
    stores.targetDisk.restart(survival);
    stores.target = Two::opened(stores.targetDisk);
    if (moved.ok() || !numbersOf(*stores.target).empty()) {
      stores.checkSame();
      CHECK(stores.target->history() == stores.source->history());
    }
  }
}

TEST_CASE("Version store: a daemon that serves its old model again begins another history") {
  Two stores;
  const uint64_t history = stores.source->history();
  stores.source->leave({ErrorCode::shuttingDown, "the model has moved"});
  for (int starts = 0; starts < 2; starts++) {
    stores.source = nullptr;
    stores.sourceDisk.restartProcess();
    stores.source = Two::opened(stores.sourceDisk);
    CHECK(numbersOf(*stores.source) == std::vector<uint64_t>{1, 2, 3});
    CHECK(stores.source->history() != history);
  }
  CHECK(publish(*stores.source, 4)->number == 5);  // 4 is given by the daemon that has the model
}

TEST_CASE("Version store: leases move along") {
  Two stores;
  PSD_REQUIRE_OK(stores.source->lease(7, 1, seconds(60), "reader"));
  stores.moveVersions();
  stores.target->show();
  for (uint8_t i = 4; i < 9; i++) PSD_REQUIRE_OK(publish(*stores.target, i));
  CHECK(numbersOf(*stores.target) == std::vector<uint64_t>{1, 6, 7, 8});
  PSD_REQUIRE_OK(stores.target->lease(7, 1, seconds(60), "reader"));  // renewed at the target
}

TEST_CASE("Version store: what cannot arrive is refused by a line") {
  Two stores;
  SECTION("the target has versions") {
    PSD_REQUIRE_OK(publish(*stores.target, 1));
    CHECK(stores.target->beginArrival().message() ==
          "'/data/versions' has published versions already: versions move to an empty folder");
    return;
  }
  VersionStore::Given given;
  std::vector<std::byte> bytes = sent(*stores.source, 1, given);
  CHECK(given.number == 2);
  CHECK(given.newer == 1);
  CHECK(given.oldest == 1);
  CHECK(stores.target->arrive(bytes, 0).message() == "no versions arrive here");
  PSD_REQUIRE_OK(stores.target->beginArrival());
  SECTION("damaged bytes") {
    bytes.back() ^= std::byte{1};
    CHECK(stores.target->arrive(bytes, 0).error().code == ErrorCode::io);
    CHECK_FALSE(stores.target->arrive({}, 0).ok());
  }
  SECTION("not in order") {
    PSD_REQUIRE_OK(stores.target->arrive(bytes, 0));
    CHECK(stores.target->arrive(bytes, 0).message() == "version 2 does not follow version 2 here");
  }
  SECTION("too large for this daemon") {
    stores.target->follow({.keep = 3, .bytes = bytes.size() - 1, .leases = 16});
    const Status refused = stores.target->arrive(bytes, 0);
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK(refused.message().find("limits.version_bytes") != std::string::npos);
  }
  SECTION("no room for all that the source has in the end") {
    PSD_REQUIRE_OK(stores.target->arrive(bytes, 0));
    stores.target->follow({.keep = 3, .bytes = bytes.size() + 10, .leases = 16});
    PSD_REQUIRE_OK(stores.target->arrive(sent(*stores.source, 2, given), 2));
    CHECK(numbersOf(*stores.target) == std::vector<uint64_t>{3});
    VersionsContinuation continuation = stores.source->continuation();
    const Status refused = stores.target->endArrival(continuation);
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK(refused.message().find("limits.version_bytes") != std::string::npos);
    continuation.numbers = {3};  // had it removed the others meanwhile
    PSD_REQUIRE_OK(stores.target->endArrival(continuation));
  }
  SECTION("not all have arrived") {
    PSD_REQUIRE_OK(stores.target->arrive(bytes, 0));
    CHECK(stores.target->endArrival(stores.source->continuation()).message() ==
          "version 1 of the previous daemon is not here; limits.version_bytes must have room for all of its "
          "versions: raise it");
  }
}

}  // namespace
}  // namespace psd::version_moves_test
