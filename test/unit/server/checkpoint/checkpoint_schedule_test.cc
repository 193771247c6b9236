#include "server/checkpoint/checkpoint_schedule.h"

#include <thread>

#include "server/checkpoint/disk_use.h"
#include "test/support/catch.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::checkpoint_schedule_test {
namespace {

using namespace testing;

TEST_CASE("a checkpoint is due once the log has grown by every_bytes since the last one") {
  CheckpointSchedule schedule({.everyBytes = 1000});
  schedule.start(0, {5, 200});
  CHECK_FALSE(schedule.due(1e6, {6, 1199}));
  CHECK_FALSE(schedule.due(1e6, {5, 5000}));  // nothing to save
  CHECK(schedule.due(0, {6, 1200}));
  schedule.succeeded(1, {6, 1150}, 1 << 30);
  CHECK_FALSE(schedule.due(1, {7, 2149}));
  CHECK(schedule.due(1, {7, 2150}));
  schedule.follow({.everyBytes = 0});
  CHECK_FALSE(schedule.due(1, {7, UINT64_MAX}));
  schedule.follow({.everySeconds = 3});
  CHECK(schedule.due(4, {7, 2150}));
}

TEST_CASE("without every_bytes, the log of a large model may grow further than that of a small one") {
  constexpr uint64_t kLeast = CheckpointSchedule::kLogBytesMin;
  CheckpointSchedule schedule({.everyBytes = std::nullopt});
  schedule.start(0, {0, 0});
  CHECK_FALSE(schedule.due(0, {1, kLeast - 1}));
  CHECK(schedule.due(0, {1, kLeast}));
  schedule.succeeded(0, {1, 0}, kLeast);
  CHECK_FALSE(schedule.due(0, {2, CheckpointSchedule::kLogOfCheckpoints * kLeast - 1}));
  CHECK(schedule.due(0, {2, CheckpointSchedule::kLogOfCheckpoints * kLeast}));
}

/// Pushes until there are `count` checkpoints.
void pushUntil(TestLoop& loop, Life& daemon, uint64_t& step, uint64_t checkpoints) {
  REQUIRE(loop.until([&] {
    const auto logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{++step});
    loop.wait(daemon.store->shard(0).whenDurable(logged));
    return daemon.durability->status().checkpoints >= checkpoints;
  }));
}

uint64_t bytesOfLog(MemoryEnv& env) {
  uint64_t bytes = 0;
  for (const auto& [path, content] : env.files()) bytes += path.ends_with(".psdlog") ? content.size() : 0;
  return bytes;
}

TEST_CASE("checkpoints by the log's size bound what is on the disk, which the status shows") {
  MemoryEnv env;
  TestLoop loop;
  DurabilityConfig config = logConfig();
  config.everyBytes = 64 << 10;
  Life daemon(env, 2, config);
  REQUIRE(daemon.begin());
  uint64_t step = 0;
  pushUntil(loop, daemon, step, 6);
  const DurabilityStatus status = daemon.durability->status();
  CHECK(status.log->writtenBytes > 5 * *config.everyBytes);
  CHECK(status.log->diskBytes > 0);
  CHECK(status.checkpointDiskBytes > 0);

  config.everyBytes = 0;
  daemon.durability->follow(config);
  // One may be in progress.
  PSD_REQUIRE_OK(daemon.durability->checkpointNow());
  const uint64_t before = daemon.durability->status().checkpoints;
  const uint64_t until = daemon.durability->status().log->writtenBytes + (256 << 10);
  while (daemon.durability->status().log->writtenBytes < until) {
    const auto logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{++step});
    loop.wait(daemon.store->shard(0).whenDurable(logged));
  }
  CHECK(daemon.durability->status().checkpoints == before);
  CHECK(daemon.durability->status().log->diskBytes + kSegmentHeaderBytes >= bytesOfLog(env));
  config.everyBytes = 64 << 10;
  daemon.durability->follow(config);
  pushUntil(loop, daemon, step, before + 1);
  PSD_REQUIRE_OK(daemon.durability->finish());
  const DurabilityStatus end = daemon.durability->status();
  const DiskUse use = diskUse(env, "/data");
  CHECK(end.checkpointDiskBytes == use.checkpoints);
  CHECK(use.log == bytesOfLog(env));
  REQUIRE(end.kept.size() == use.kept.size());
  uint64_t kept = 0;
  for (const KeptCheckpointStatus& each : end.kept) kept += each.diskBytes;
  CHECK(kept == use.checkpoints);
  REQUIRE_FALSE(end.kept.empty());
  CHECK(end.kept.back().path == end.lastCheckpoint->path);
  CHECK(end.kept.back().created.ends_with("Z"));
}

TEST_CASE("a log from before the daemon's start counts as growth") {
  MemoryEnv env;
  TestLoop loop;
  DurabilityConfig config = logConfig();
  uint64_t step = 0;
  {
    config.everyBytes = 0;
    Life daemon(env, 2, config);
    REQUIRE(daemon.begin());
    while (daemon.durability->status().log->writtenBytes < 256 << 10) {
      const auto logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{++step});
      loop.wait(daemon.store->shard(0).whenDurable(logged));
    }
  }
  config.everyBytes = 256 << 10;
  Life daemon(env, 2, config);
  REQUIRE(daemon.begin());
  const auto logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{++step});
  loop.wait(daemon.store->shard(0).whenDurable(logged));
  CHECK(loop.until([&] { return daemon.durability->status().checkpoints == 1; }));
}

}  // namespace
}  // namespace psd::checkpoint_schedule_test
