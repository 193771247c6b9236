// A disk with read errors: a daemon starts with everything, or refuses to start with the reason, and the
// content of the disk stays.

#include "test/support/catch.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::read_errors_test {
namespace {

using namespace testing;

constexpr const char* kUnreadable = "Input/output error";
constexpr float kPushes = 5;

/// Three checkpoints, two of them kept, and the updates after the last; with a log its end is truncated.
void live(MemoryEnv& env, const DurabilityConfig& config) {
  TestLoop loop;
  const bool logs = config.type == DurabilityConfig::Type::log;
  for (uint64_t step = 1; step <= kPushes; step++) {
    Life daemon(env, 1, config);
    REQUIRE(daemon.store);
    REQUIRE(daemon.begin());
    loop.wait(daemon.store->shard(0).whenDurable(
        push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{step})));
    if (!logs || step <= 2) PSD_REQUIRE_OK(daemon.durability->finish());
  }
  if (!logs) return;
  const std::string path = segmentPath("/data", highestSegment(env, "/data").value());
  env.put(path, env.bytes(path) + "cut off");
}

TEST_CASE(
    "with any unreadable file a daemon starts with everything, or fails and leaves the disk unchanged") {
  auto config = logConfig();
  config.type = GENERATE(DurabilityConfig::Type::log, DurabilityConfig::Type::checkpoint);
  const uint64_t failing = GENERATE(uint64_t{1}, uint64_t{3}, uint64_t{1} << 32);
  uint64_t refused = 0;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    INFO("from read " << point << " on");
    MemoryEnv env;
    live(env, config);
    const auto before = env.files();
    env.failReads(point, failing, kUnreadable);
    if (Life daemon(env, 1, config); daemon.store) {
      CHECK(counts(*daemon.store).at(0) == kPushes);
      done = env.failedReads() == 0;
      static_cast<void>(daemon.begin());
    } else {
      CHECK(daemon.refused.message().find("'/data") != std::string::npos);
      CHECK(daemon.refused.message().find(kUnreadable) != std::string::npos);
      CHECK(env.files() == before);
      refused++;
    }
    env.heal();
    const Life after(env, 1, config);
    REQUIRE(after.store);
    CHECK(counts(*after.store).at(0) == kPushes);
  }
  CHECK(refused > 0);
}

TEST_CASE("an unreadable checkpoint is not treated as a damaged one, and the error says so") {
  MemoryEnv env;
  auto config = logConfig();
  config.type = DurabilityConfig::Type::checkpoint;
  live(env, config);
  const std::string newest = checkpointPath("/data", listCheckpoints(env, "/data", true).value().back());
  env.fail({"read"}, kUnreadable);
  const Life refused(env, 1, config);
  REQUIRE_FALSE(refused.store);
  CHECK(refused.refused.message() ==
        "durability.path: '" + newest +
            "/manifest.json': cannot read: Input/output error; the checkpoint may be intact, so no older one "
            "replaces it: try again when it can be read, or name the one to take");
  env.heal();
  // One with a missing file is damaged.
  PSD_REQUIRE_OK(env.remove(newest + "/shard-00000.safetensors"));
  const Life older(env, 1, config);
  REQUIRE(older.store);
  CHECK(counts(*older.store).at(0) == kPushes - 1);
}

TEST_CASE("a checkpoint that cannot be examined for completeness is not removed") {
  MemoryEnv env;
  live(env, logConfig());
  const auto before = env.files();
  env.fail({"exists"}, kUnreadable);
  CHECK_FALSE(pruneCheckpoints(env, "/data", 1).ok());
  removeUnfinished(env, "/data");
  CHECK(env.files() == before);
}

TEST_CASE("an unreadable file of finished ranks is an error, and stays") {
  MemoryEnv env;
  PSD_REQUIRE_OK(writeDeparted(env, "/data", {3, {Rank{0}}}));
  const auto before = env.files();
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  const std::string failing = GENERATE("exists", "open", "read");
  env.fail({failing}, kUnreadable);
  CHECK((*durability)->departed().message() ==
        "'/data/trainers.json': cannot " + failing + ": " + kUnreadable);
  if (failing == "exists") CHECK_FALSE((*durability)->clearDepartedRanks().ok());
  env.heal();
  REQUIRE((*durability)->departed().ok());
  CHECK((*durability)->departed().value()->ranks.contains(Rank{0}));
}

}  // namespace
}  // namespace psd::read_errors_test
