// The base of a log: without its checkpoint, its folder or its model a log is useless, and that is detected
// before a caller relies on it.

#include <algorithm>
#include <atomic>
#include <thread>

#include "server/checkpoint/log_reader.h"
#include "test/support/catch.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::log_base_test {
namespace {

using namespace testing;

void pushed(TestLoop& loop, Life& daemon, uint64_t step) {
  loop.wait(daemon.store->shard(0).whenDurable(
      push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{step})));
}

/// A daemon that answers one push, and dies.
void shortLife(MemoryEnv& env, TestLoop& loop) {
  Life daemon(env);
  REQUIRE(daemon.begin());
  pushed(loop, daemon, 1);
}

LogStatus logStatus(const Life& daemon) { return daemon.durability->status().log.value(); }

bool mended(TestLoop& loop, const Life& daemon, uint64_t failures) {
  return loop.until([&] {
    const auto log = logStatus(daemon);
    return log.failures >= failures && log.error == "";
  });
}

float recovered(MemoryEnv& env) {
  env.restart(Survival::syncedOnly);
  const Life after(env);
  REQUIRE(after.store);
  return counts(*after.store)[0];
}

TEST_CASE("a log whose folder is removed breaks before it answers a push, and restarts with a full base") {
  const bool pushesMeanwhile = GENERATE(true, false);
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env);
  REQUIRE(daemon.begin());
  pushed(loop, daemon, 1);
  env.vanish("/data");
  if (pushesMeanwhile) {
    pushed(loop, daemon, 2);
    CHECK(logStatus(daemon).failures >= 1);
  }
  REQUIRE(mended(loop, daemon, 1));
  pushed(loop, daemon, 3);
  const auto second = Durability::open(env, logConfig());
  REQUIRE_FALSE(second.ok());
  CHECK(second.message().find("durability.path: '/data' is in use by another daemon") != std::string::npos);
  daemon.durability = nullptr;
  CHECK(recovered(env) == (pushesMeanwhile ? 3.f : 2.f));
}

TEST_CASE("a checkpoint is reported only once the folder names its owner, and is ignored without") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env);
  std::atomic<bool> fails{true};
  std::atomic<int> toldBefore{0}, notWhole{0}, calls{0};
  daemon.durability->beforeCheckpointAnnounced([&]() -> Status {
    calls++;
    toldBefore += static_cast<int>(daemon.durability->status().checkpoints);
    const std::vector<uint64_t> whole = listCheckpoints(env, "/data", true).value();
    if (whole.size() != static_cast<size_t>(calls)) notWhole++;
    return fails ? Status(ErrorCode::io, "no room for the mark") : Status();
  });
  REQUIRE_FALSE(daemon.begin());
  CHECK(daemon.durability->status().checkpoints == 0);
  CHECK(daemon.durability->status().error == "no room for the mark");
  fails = false;
  PSD_REQUIRE_OK(daemon.durability->checkpointNow());
  CHECK(daemon.durability->status().checkpoints == 1);
  CHECK(toldBefore == 0);
  CHECK(notWhole == 0);
  pushed(loop, daemon, 1);
  daemon.durability = nullptr;
  CHECK(recovered(env) == 1.f);
}

TEST_CASE("a folder that another daemon has created again meanwhile is left alone") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env);
  REQUIRE(daemon.begin());
  env.fail({"lock"}, "Resource temporarily unavailable");
  env.vanish("/data");
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string theirs = checkpointPath("/data", 9);  // in progress
  PSD_REQUIRE_OK(env.createFolder(theirs));
  env.put(theirs + "/shard-00000.safetensors", "half of it");
  pushed(loop, daemon, 1);
  REQUIRE(loop.until([&] { return daemon.durability->status().checkpointFailures >= 1; }));
  daemon.durability = nullptr;
  CHECK(env.list("/data").value() == std::vector<std::string>{"checkpoint-0000000009"});
  CHECK(env.exists(theirs + "/shard-00000.safetensors").value());
}

TEST_CASE("if the first checkpoint of a log fails the log is broken until one succeeds") {
  const std::string resume = GENERATE("none", "/data/checkpoint-0000000001");
  const bool heals = GENERATE(true, false);
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env);
    REQUIRE(daemon.begin());
    for (uint64_t step = 1; step <= 3; step++) pushed(loop, daemon, step);
  }
  auto config = logConfig();
  config.resume = resume;
  Life daemon(env, 2, config);
  REQUIRE(daemon.store);
  env.fail({"rename"}, "No space left on device");  // segments can be created, manifests cannot
  CHECK_FALSE(daemon.begin());
  pushed(loop, daemon, 4);
  CHECK(logStatus(daemon).error.find("no checkpoint leads to it") != std::string::npos);
  CHECK(logStatus(daemon).lost == 1);
  env.heal();
  if (heals) {
    REQUIRE(mended(loop, daemon, 1));
    pushed(loop, daemon, 5);
    daemon.durability = nullptr;
    CHECK(recovered(env) == 2.f);
  } else {
    CHECK(recovered(env) == 3.f);  // nothing was promised of what came after
  }
}

TEST_CASE("a daemon that dies before its first checkpoint succeeds leaves nothing that blocks the next") {
  const bool hasFirst = GENERATE(false, true);
  const Survival survival = GENERATE(Survival::everything, Survival::syncedOnly);
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env);
    env.fail({"rename"}, "No space left on device");
    CHECK_FALSE(daemon.begin());
    pushed(loop, daemon, 1);
    auto held = std::optional(loop.wait(daemon.store->shard(1).lock().acquire()));
    env.heal();
    // The first shard's file is there, and the second shard not copied yet.
    const std::string file = checkpointPath("/data", 2) + "/shard-00000.safetensors";
    REQUIRE(loop.until([&] { return !env.bytes(file).empty(); }));
    pushed(loop, daemon, 2);
    if (hasFirst) {
      held.reset();
      REQUIRE(loop.until([&] { return daemon.durability->status().checkpoints == 1; }));
      pushed(loop, daemon, 3);
    }
    env.crashAt(env.operations().size());
    held.reset();
  }
  env.restart(survival);
  Life after(env);
  INFO(after.refused.message());
  REQUIRE(after.store);
  CHECK(after.fresh != hasFirst);
  REQUIRE(after.begin());
  const float before = counts(*after.store)[0];
  pushed(loop, after, 4);
  after.durability = nullptr;
  CHECK(recovered(env) == before + 1);
}

TEST_CASE("a log that could not start recovers soon after there is space, without a push") {
  const bool goesOn = GENERATE(true, false);
  MemoryEnv env;
  TestLoop loop;
  if (goesOn) shortLife(env, loop);
  Life daemon(env);
  REQUIRE(daemon.store);
  env.fail({"append"}, "No space left on device");
  CHECK(daemon.begin() == goesOn);
  REQUIRE(loop.until([&] { return daemon.durability->status().checkpointFailures >= 1; }));
  env.heal();
  REQUIRE(mended(loop, daemon, 1));
  const auto newest = readSegment(env, segmentPath("/data", highestSegment(env, "/data").value()),
                                  [](const LogRecord&) { return Status(); });
  PSD_REQUIRE_OK(newest);
  REQUIRE(newest->header);
  CHECK(newest->header->signature == daemon.store->model().signature());
  pushed(loop, daemon, 2);
  daemon.durability = nullptr;
  CHECK(recovered(env) == (goesOn ? 2.f : 1.f));
}

TEST_CASE("unfinished files leave the disk before the next checkpoint, and after one that failed") {
  MemoryEnv env;
  TestLoop loop;
  shortLife(env, loop);
  const std::string left = checkpointPath("/data", 17);  // of a dead daemon
  PSD_REQUIRE_OK(env.createFolder(left));
  env.put(left + "/shard-00000.safetensors", "half of it");
  auto config = logConfig();
  config.everyUpdates = 1;
  Life daemon(env, 2, config);
  REQUIRE(daemon.begin());
  env.fail({"rename"}, "No space left on device");
  for (uint64_t step : {2, 3}) pushed(loop, daemon, step);  // as many as there are shards
  REQUIRE(loop.until([&] { return daemon.durability->status().checkpointFailures >= 1; }));
  CHECK(listCheckpoints(env, "/data", false).value() == listCheckpoints(env, "/data", true).value());
  env.heal();
  daemon.durability = nullptr;
  CHECK(recovered(env) == 3.f);
}

TEST_CASE("an old log does not stop a daemon without one from skipping a damaged checkpoint") {
  MemoryEnv env;
  TestLoop loop;
  shortLife(env, loop);
  auto config = logConfig();
  config.type = DurabilityConfig::Type::checkpoint;
  for (uint64_t step : {2, 3}) {
    Life daemon(env, 2, config);
    REQUIRE(daemon.begin());
    CHECK(counts(*daemon.store)[0] == static_cast<float>(step - 1));
    pushed(loop, daemon, step);
    PSD_REQUIRE_OK(daemon.durability->finish());
  }
  const std::string newest = checkpointPath("/data", listCheckpoints(env, "/data", true).value().back());
  env.put(newest + "/shard-00000.safetensors", "damaged");
  const Life daemon(env, 2, config);
  REQUIRE(daemon.store);
  CHECK(counts(*daemon.store)[0] == 2.f);
}

TEST_CASE("updates based on a damaged checkpoint stop a daemon from resuming from an older one") {
  MemoryEnv env;
  TestLoop loop;
  const bool olderHasLog = GENERATE(true, false);
  {
    auto config = logConfig();
    if (!olderHasLog) config.type = DurabilityConfig::Type::checkpoint;
    Life daemon(env, 2, config);
    REQUIRE(daemon.begin());
    pushed(loop, daemon, 1);
    if (!olderHasLog) PSD_REQUIRE_OK(daemon.durability->finish());
  }
  {
    auto config = logConfig();
    config.resume = "none";
    Life daemon(env, 2, config);
    REQUIRE(daemon.begin());
    for (uint64_t step = 1; step <= 4; step++) pushed(loop, daemon, step);
  }
  const auto numbers = listCheckpoints(env, "/data", true).value();
  REQUIRE(numbers.size() == 2);
  const std::string older = checkpointPath("/data", numbers[0]), newer = checkpointPath("/data", numbers[1]);
  const std::string manifest = newer + "/manifest.json", bytes = env.bytes(manifest);
  const bool unfinished = GENERATE(true, false);  // nothing was promised of what is based on it
  if (unfinished) {
    PSD_REQUIRE_OK(env.remove(manifest));
    PSD_REQUIRE_OK(env.syncFolder(newer));
  } else {
    env.put(manifest, bytes.substr(1));
  }
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  const Status refused = (*durability)->find().status();
  REQUIRE(refused.ok() == unfinished);
  if (unfinished) {
    *durability = nullptr;
    for (uint64_t life = 2; life <= 3; life++) {  // each skips what the other history holds
      Life daemon(env);
      REQUIRE(daemon.begin());
      CHECK(counts(*daemon.store)[0] == static_cast<float>(life - 1));
      pushed(loop, daemon, life);
    }
    CHECK(recovered(env) == 3.f);
    return;
  }
  CHECK(refused.message().find("'/data/log-") != std::string::npos);
  CHECK(refused.message().find("durability.resume=" + older) != std::string::npos);
  *durability = nullptr;
  env.put(manifest, bytes);
  CHECK(recovered(env) == 4.f);
}

TEST_CASE("a daemon that is rejected because its model is another one leaves the folder unchanged") {
  MemoryEnv env;
  TestLoop loop;
  for (uint64_t life = 1; life <= 2; life++) {
    Life daemon(env);
    REQUIRE(daemon.begin());
    pushed(loop, daemon, life);
    if (life == 1) PSD_REQUIRE_OK(daemon.durability->finish());
  }
  const auto before = env.list("/data").value();
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  const auto found = (*durability)->find();
  PSD_REQUIRE_OK(found);
  auto store = makeStore(2, kCounting, {"other", {{"a", DType::f32, {400}}}});
  const Status refused = (*durability)->restore(**found, *store);
  CHECK(refused.error().code == ErrorCode::modelMismatch);
  CHECK(env.list("/data").value() == before);
}

TEST_CASE(
    "a checkpoint during which the log broke is discarded: its shards hold updates that the log lacks") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env);
  REQUIRE(daemon.begin());
  pushed(loop, daemon, 1);
  auto held = std::optional(loop.wait(daemon.store->shard(1).lock().acquire()));
  std::thread ending([&] { static_cast<void>(daemon.durability->finish()); });
  // The first shard's file is complete, and the second shard not copied yet.
  const std::string written = "sync " + checkpointPath("/data", 2) + "/shard-00000.safetensors";
  const bool copying = loop.until([&] {
    const std::vector<std::string> done = env.operations();
    return std::find(done.begin(), done.end(), written) != done.end();
  });
  env.fail({"append"}, "No space left on device");
  pushed(loop, daemon, 2);
  env.heal();
  held.reset();
  ending.join();
  REQUIRE(copying);
  CHECK(daemon.durability->status().error.find("the log is broken") != std::string::npos);
  CHECK(listCheckpoints(env, "/data", true).value() == std::vector<uint64_t>{1});
}

TEST_CASE("a damaged checkpoint does not displace a whole one") {
  MemoryEnv env;
  TestLoop loop;
  const auto live = [&](uint64_t step) {
    Life daemon(env);
    REQUIRE(daemon.begin());
    pushed(loop, daemon, step);
    PSD_REQUIRE_OK(daemon.durability->finish());
  };
  for (uint64_t step = 1; step <= 3; step++) live(step);
  const auto numbers = listCheckpoints(env, "/data", true).value();
  REQUIRE(numbers.size() == 2);
  const std::string path = checkpointPath("/data", numbers[1]) + "/shard-00000.safetensors";
  env.put(path, env.bytes(path) + "x");
  live(4);
  CHECK(listCheckpoints(env, "/data", true).value() ==
        std::vector<uint64_t>{numbers[0], numbers[1], numbers[1] + 1});
  live(5);
  CHECK(listCheckpoints(env, "/data", true).value() == std::vector<uint64_t>{numbers[1] + 1, numbers[1] + 2});
  CHECK(recovered(env) == 5.f);
}

}  // namespace
}  // namespace psd::log_base_test
