#include "server/publish/parts_intake.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "common/checksum/crc32c.h"
#include "server/replica/memory_files.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::parts_intake_test {
namespace {

using namespace testing;
using Bytes = std::vector<std::byte>;
using Begun = Result<PartsIntake::Begun>;

constexpr uint64_t kElements = 8;  // of tensor "w", which the ranks share equally

/// An intake over files in memory, with a clock that the test turns.
struct World {
  explicit World(uint64_t bytes = 1 << 20) : versionBytes(bytes) { start(); }

  void start() {
    intake = nullptr;
    auto opened = VersionStore::open({.env = files, .folder = "/versions"},
                                     {.keep = 4, .bytes = versionBytes, .leases = 4});
    PSD_REQUIRE_OK(opened);
    intake = std::make_unique<PartsIntake>(
        *std::move(opened), PartsIntake::Terms{.timeout = std::chrono::seconds(60), .ranksMax = 8},
        "/versions", [this] {
          looks++;
          return PartsIntake::Time(std::chrono::seconds(seconds.load()));
        });
  }
  /// Waits until the thread has looked at the clock, and has acted on what it saw.
  void awaitLook() {
    const uint64_t before = looks;
    REQUIRE(loop.until([&] { return looks >= before + 2; }));
  }
  kj::Promise<Begun> begin(uint64_t step, uint32_t rank, uint32_t worldSize = 2, uint8_t fill = 1,
                           uint64_t incarnation = 0) {
    PartsIntake::Request request{.rank = rank,
                                 .worldSize = worldSize,
                                 .incarnation = incarnation != 0 ? incarnation : 100 + rank,
                                 .step = step,
                                 .parts = {}};
    const Bytes bytes = bytesOf(worldSize, fill);
    request.parts.push_back(
        {"w", "F8_E4M3", {kElements}, {bytes.size() * rank}, {bytes.size()}, crc32c(bytes)});
    return intake->begin(std::move(request));
  }
  static Bytes bytesOf(uint32_t worldSize, uint8_t fill = 1) {
    return Bytes(kElements / worldSize, static_cast<std::byte>(fill));
  }
  std::shared_ptr<PartsIntake::Upload> uploadOf(kj::Promise<Begun> begins) {
    const Begun begun = loop.wait(kj::mv(begins));
    PSD_REQUIRE_OK(begun);
    REQUIRE(begun->upload);
    return begun->upload;
  }
  /// Publishes a step by a single rank.
  Result<VersionInfo> publish(uint64_t step, uint8_t fill = 1) {
    const Begun begun = loop.wait(begin(step, 0, 1, fill));
    if (!begun.ok()) return begun.error();
    if (begun->published) return *begun->published;
    PSD_REQUIRE_OK(begun->upload->write(0, bytesOf(1, fill)));
    return loop.wait(begun->upload->finish());
  }
  void checkFails(kj::Promise<Begun> begins, ErrorCode code, const std::string& message) {
    const Begun begun = loop.wait(kj::mv(begins));
    REQUIRE_FALSE(begun.ok());
    CHECK(begun.error().code == code);
    CHECK(begun.message() == message);
  }
  static void checkFailed(const Result<VersionInfo>& made, ErrorCode code, const std::string& message) {
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code == code);
    CHECK(made.message() == message);
  }

  TestLoop loop;
  const uint64_t versionBytes;
  const std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
  std::atomic<int64_t> seconds{1000};
  std::atomic<uint64_t> looks{0};  // at the clock
  std::unique_ptr<PartsIntake> intake;
};

TEST_CASE("Parts intake: a step of two ranks becomes a version") {
  World world;
  auto first = world.begin(5, 0);
  CHECK_FALSE(world.loop.resolved(first));
  const auto one = world.uploadOf(world.begin(5, 1)), zero = world.uploadOf(kj::mv(first));
  PSD_REQUIRE_OK(zero->write(0, World::bytesOf(2)));
  auto waits = zero->finish();
  CHECK_FALSE(world.loop.resolved(waits));
  CHECK(world.intake->status().assembling->missing == std::vector<uint32_t>{1});
  CHECK(world.intake->status().assembling->arrivedBytes == 4);
  PSD_REQUIRE_OK(one->write(0, World::bytesOf(2)));
  const auto made = world.loop.wait(kj::mv(waits)), other = world.loop.wait(one->finish());
  PSD_REQUIRE_OK(made);
  PSD_REQUIRE_OK(other);
  CHECK(made->number == 1);
  CHECK(other->number == 1);
  CHECK(made->step == 5);
  CHECK(made->moment == VersionMoment::step);
  const PublishStatus status = world.intake->status();
  CHECK(status.published == 1);
  CHECK(status.receivedBytes == 8);
  CHECK_FALSE(status.assembling);
  CHECK(status.from == "publishers");
}

TEST_CASE("Parts intake: a step is published once, also after a restart") {
  World world;
  PSD_REQUIRE_OK(world.publish(5));
  for (int i = 0; i < 2; i++) {
    const auto again = world.publish(5);
    PSD_REQUIRE_OK(again);
    CHECK(again->number == 1);
    const Begun half = world.loop.wait(world.begin(5, 1));  // by two ranks
    PSD_REQUIRE_OK(half);
    REQUIRE(half->published);
    CHECK(half->published->number == 1);
    World::checkFailed(
        world.publish(5, 2), ErrorCode::invalidArgument,
        "step 5 is published already, as version 1 with other bytes of tensor 'w' [0:8]: a step has one "
        "version");
    world.checkFails(
        world.begin(5, 1, 2, 3), ErrorCode::invalidArgument,
        "step 5 is published already, as version 1 with other bytes of tensor 'w' [4:8]: a step has one "
        "version");
    World::checkFailed(world.publish(4), ErrorCode::invalidArgument,
                       "step 4 is not newer than step 5, of version 1: steps must rise");
    world.start();
  }
  CHECK(world.publish(6).value().number == 2);
}

TEST_CASE("Parts intake: a set that does not become whole is abandoned, and the error names the ranks") {
  World world;
  auto begins = world.begin(5, 1, 3);
  world.seconds += 59;
  world.awaitLook();
  CHECK_FALSE(world.loop.resolved(begins));
  world.seconds += 1;
  const std::string line =
      "step 5 is abandoned: ranks 0 and 2 of 3 have not begun it within 60 s (publish.parts_timeout_seconds)";
  const Begun begun = world.loop.wait(kj::mv(begins));
  REQUIRE_FALSE(begun.ok());
  CHECK(begun.error().code == ErrorCode::deadlineExceeded);
  CHECK(begun.message() == line);
  CHECK(world.intake->takeAbandoned() == std::vector<std::string>{line});
  CHECK(world.intake->takeAbandoned().empty());
  CHECK(world.intake->status().abandoned == 1);

  auto first = world.begin(6, 0);
  const auto one = world.uploadOf(world.begin(6, 1)), zero = world.uploadOf(kj::mv(first));
  world.seconds += 59;
  PSD_REQUIRE_OK(zero->write(0, World::bytesOf(2)));  // time counts from the last byte
  auto waits = zero->finish();
  world.seconds += 59;
  world.awaitLook();
  CHECK_FALSE(world.loop.resolved(waits));
  world.seconds += 1;
  World::checkFailed(world.loop.wait(kj::mv(waits)), ErrorCode::deadlineExceeded,
                     "step 6 is abandoned: rank 1 of 2 has not sent all, and no byte has arrived within 60 s "
                     "(publish.parts_timeout_seconds)");
  const Status late = one->write(0, World::bytesOf(2));
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::deadlineExceeded);
  CHECK(world.publish(6).value().number == 1);
}

TEST_CASE("Parts intake: a rank that begins a newer step abandons the older one") {
  World world;
  auto older = world.begin(5, 0);
  auto newer = world.begin(6, 1);
  world.checkFails(kj::mv(older), ErrorCode::notReady, "step 5 is abandoned: rank 1 has begun step 6");
  world.checkFails(world.begin(5, 0), ErrorCode::notReady,
                   "step 5 is abandoned: other ranks have begun step 6");
  const auto zero = world.uploadOf(world.begin(6, 0)), one = world.uploadOf(kj::mv(newer));
  PSD_REQUIRE_OK(zero->write(0, World::bytesOf(2)));
  PSD_REQUIRE_OK(one->write(0, World::bytesOf(2)));
  PSD_REQUIRE_OK(world.loop.wait(one->finish()));
}

TEST_CASE("Parts intake: ranks that disagree") {
  World world;
  auto first = world.begin(5, 0);
  world.checkFails(world.begin(5, 1, 4), ErrorCode::worldSizeMismatch,
                   "rank 1 has begun step 5 with world size 4, and 0 with 2");
  CHECK_FALSE(world.loop.resolved(first));
  PartsIntake::Request wrong{.rank = 1, .worldSize = 2, .incarnation = 101, .step = 5, .parts = {}};
  const Bytes bytes = World::bytesOf(2);
  wrong.parts.push_back({"w", "I8", {kElements}, {4}, {4}, crc32c(bytes)});
  const std::string why = "step 5 is abandoned: rank 0 gives w F8_E4M3[8], and rank 1 w I8[8]";
  world.checkFails(world.intake->begin(std::move(wrong)), ErrorCode::modelMismatch, why);
  world.checkFails(kj::mv(first), ErrorCode::modelMismatch, why);
  world.checkFails(world.begin(5, 2), ErrorCode::invalidArgument, "rank 2 is not below the world size 2");
  world.checkFails(world.begin(5, 0, 9), ErrorCode::invalidArgument,
                   "world size 9 is not from 1 to 8 (limits.connections)");
}

TEST_CASE("Parts intake: the newest process of a rank publishes") {
  World world;
  auto replaced = world.begin(5, 0, 2, 1, 7);
  auto newest = world.begin(5, 0, 2, 1, 8);
  const std::string why = "another publisher has taken over rank 0";
  world.checkFails(kj::mv(replaced), ErrorCode::rankTaken, why);
  world.checkFails(world.begin(5, 0, 2, 1, 7), ErrorCode::rankTaken, why);
  const auto one = world.uploadOf(world.begin(5, 1)), zero = world.uploadOf(kj::mv(newest));
  PSD_REQUIRE_OK(zero->write(0, std::span<const std::byte>(World::bytesOf(2)).first(1)));

  // Its successor continues with what has arrived.
  const auto successor = world.uploadOf(world.begin(5, 0, 2, 1, 9));
  CHECK(successor->arrived() == 1);
  const Status late = zero->write(1, World::bytesOf(2));
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::rankTaken);
  World::checkFailed(world.loop.wait(zero->finish()), ErrorCode::rankTaken, why);
  PSD_REQUIRE_OK(successor->write(1, std::span<const std::byte>(World::bytesOf(2)).subspan(1)));
  PSD_REQUIRE_OK(one->write(0, World::bytesOf(2)));
  PSD_REQUIRE_OK(world.loop.wait(successor->finish()));
}

TEST_CASE("Parts intake: a rank that gives other bytes starts the step again") {
  World world;
  auto first = world.begin(5, 0);
  const auto one = world.uploadOf(world.begin(5, 1)), zero = world.uploadOf(kj::mv(first));
  auto again = world.begin(5, 1, 2, 9);
  World::checkFailed(world.loop.wait(zero->finish()), ErrorCode::notReady,
                     "step 5 is abandoned: rank 1 has begun it again with other parts");
  const auto zeroAgain = world.uploadOf(world.begin(5, 0)), oneAgain = world.uploadOf(kj::mv(again));
  PSD_REQUIRE_OK(zeroAgain->write(0, World::bytesOf(2)));
  PSD_REQUIRE_OK(oneAgain->write(0, World::bytesOf(2, 9)));
  PSD_REQUIRE_OK(world.loop.wait(oneAgain->finish()));
}

TEST_CASE("Parts intake: limits") {
  World world(600);
  const auto refused = world.publish(1);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("limits.version_bytes") != std::string::npos);
  CHECK(world.intake->status().abandoned == 1);
  CHECK_FALSE(world.intake->status().assembling);
}

TEST_CASE("Parts intake: who waits learns of the end") {
  World world;
  auto begins = world.begin(5, 0);
  world.intake->finish();
  world.checkFails(kj::mv(begins), ErrorCode::shuttingDown, "the daemon is shutting down");
  world.checkFails(world.begin(5, 0), ErrorCode::shuttingDown, "the daemon is shutting down");
}

}  // namespace
}  // namespace psd::parts_intake_test
