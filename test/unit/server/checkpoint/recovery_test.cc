#include <cmath>
#include <string>
#include <vector>

#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/replay.h"
#include "test/support/catch.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::recovery_test {
namespace {

using namespace testing;

const std::string kAdam = R"({"type": "adam", "lr": 0.01})";

TEST_CASE("after a crash at any operation every acknowledged push is there once, with log and checkpoints") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const unsigned appended = GENERATE(0u, 7u, 16u);
  TestLoop loop;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    env.crashAt(point, appended);
    std::vector<float> acknowledged(2, 0.f), attempted(2, 0.f);
    // Two lives, the power failing in one of them; the second one recovers from an orderly end.
    for (int life = 0; life < 2; life++) {
      Life daemon(env);
      if (!daemon.store || !daemon.begin()) break;
      for (uint64_t step = 1; step <= 3; step++) {
        std::vector<uint64_t> logged;
        for (size_t shard = 0; shard < 2; shard++) {
          logged.push_back(push(*daemon.store, shard, countingGradient(*daemon.store, shard), Step{step}));
          attempted[shard]++;
        }
        for (size_t shard = 0; shard < 2; shard++) {
          loop.wait(daemon.store->shard(shard).whenDurable(logged[shard]));
          if (!env.crashed()) acknowledged[shard]++;
        }
        if (step == 2) static_cast<void>(daemon.durability->finish());  // a checkpoint in between
      }
    }
    done = !env.crashed();
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    Life after(env);
    REQUIRE(after.store);
    const std::vector<float> found = counts(*after.store);
    for (size_t shard = 0; shard < 2; shard++) {
      REQUIRE(found[shard] >= acknowledged[shard]);
      REQUIRE(found[shard] <= attempted[shard]);
      REQUIRE(static_cast<float>(after.store->shard(shard).version().value) == found[shard]);
    }
    // And it continues from there, through another orderly end.
    if (after.begin()) {
      const auto logged = push(*after.store, 0, countingGradient(*after.store, 0), Step{9});
      loop.wait(after.store->shard(0).whenDurable(logged));
    }
    after.durability = nullptr;
    Life again(env);
    REQUIRE(again.store);
    REQUIRE(counts(*again.store)[0] == found[0] + 1);
  }
}

TEST_CASE("a second crash, at any operation of the recovery from the first one, loses nothing more") {
  const Survival survival = GENERATE(Survival::everything, Survival::namesWithHalfData);
  TestLoop loop;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    bool recovered = false;
    for (uint64_t second = 0; !recovered && !done; second++) {
      MemoryEnv env;
      env.crashAt(point, 7);
      float acknowledged = 0, attempted = 0;
      const auto pushes = [&](Life& daemon, uint64_t count) {
        for (uint64_t step = 1; step <= count; step++) {
          const auto logged = push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{step});
          attempted++;
          loop.wait(daemon.store->shard(0).whenDurable(logged));
          if (!env.crashed()) acknowledged++;
        }
      };
      if (Life daemon(env); daemon.store && daemon.begin()) pushes(daemon, 2);
      done = !env.crashed();
      env.restart(survival);
      env.crashAt(second, 7);
      if (Life daemon(env); daemon.store && daemon.begin()) pushes(daemon, 1);
      recovered = !env.crashed();
      env.restart(Survival::syncedOnly);
      INFO("operation " << point << ", then " << second << ", survival " << static_cast<int>(survival));
      const Life after(env);
      REQUIRE(after.store);
      REQUIRE(counts(*after.store)[0] >= acknowledged);
      REQUIRE(counts(*after.store)[0] <= attempted);
    }
  }
}

/// Three checkpoints, of the values 1, 2 and 3, and a log to 4.
void liveOnce(MemoryEnv& env) {
  auto config = logConfig();
  config.keep = 3;
  TestLoop loop;
  for (uint64_t life = 1; life <= 4; life++) {
    Life daemon(env, 1, config);
    REQUIRE(daemon.store);
    REQUIRE(daemon.begin());
    loop.wait(daemon.store->shard(0).whenDurable(
        push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{life})));
    if (life < 4) PSD_REQUIRE_OK(daemon.durability->finish());
  }
}

std::vector<std::string> checkpoints(Env& env) {
  std::vector<std::string> paths;
  const auto numbers = listCheckpoints(env, "/data", true);
  PSD_REQUIRE_OK(numbers);
  for (uint64_t number : *numbers) paths.push_back(checkpointPath("/data", number));
  return paths;
}

/// The value that a daemon starts with; nothing: a fresh model.
std::optional<float> resumed(Env& env, const std::string& resume) {
  auto config = logConfig();
  config.resume = resume;
  const Life daemon(env, 1, config);
  REQUIRE(daemon.store);
  if (daemon.fresh) return {};
  return counts(*daemon.store).at(0);
}

TEST_CASE("an orderly end saves updates that were replayed, once") {
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env);
    REQUIRE(daemon.begin());
    loop.wait(daemon.store->shard(0).whenDurable(pushRound(*daemon.store, Step{1})));
  }
  uint64_t number = 0;
  for (int end = 0; end < 2; end++) {
    Life daemon(env);
    REQUIRE(daemon.begin());
    CHECK(counts(*daemon.store) == std::vector<float>(2, 1.f));
    PSD_REQUIRE_OK(daemon.durability->finish());
    const auto newest = newestCheckpoint(env, "/data");
    PSD_REQUIRE_OK(newest);
    REQUIRE(newest->checkpoint);
    for (const ManifestShard& shard : newest->checkpoint->manifest.shards) CHECK(shard.version == Version{1});
    if (end == 1) CHECK(newest->checkpoint->manifest.number == number);
    number = newest->checkpoint->manifest.number;
  }
}

TEST_CASE("an update before every kept checkpoint cannot be rebuilt, and the error says which can") {
  MemoryEnv env;
  liveOnce(env);
  CHECK(counts(**rebuild(env, "/data", Version{1})) == std::vector<float>{1.f});
  CHECK(rebuild(env, "/data", Version{0}).message() ==
        "every checkpoint left in '/data' is beyond update 0; the earliest available is 1");
}

TEST_CASE(
    "resume: auto resumes from the newest checkpoint and its log, a path from that one, none from scratch") {
  MemoryEnv env;
  liveOnce(env);
  const auto paths = checkpoints(env);
  REQUIRE(paths.size() == 3);
  CHECK(resumed(env, "auto") == 4.f);
  CHECK(resumed(env, "none") == std::nullopt);
  for (size_t i = 0; i < 3; i++) CHECK(resumed(env, paths[i]) == static_cast<float>(i + 1));
  CHECK(resumed(env, "/data") == 3.f);  // the newest of a named folder, unchanged
}

TEST_CASE("if damage stops a daemon from resuming its error names a remedy, which then works") {
  MemoryEnv env;
  liveOnce(env);
  const auto paths = checkpoints(env);
  const auto damage = [&](const std::string& path, size_t at) {
    std::string bytes = env.bytes(path);
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    env.put(path, bytes);
  };
  const auto refusal = [&](const std::string& resume) {
    auto config = logConfig();
    config.resume = resume;
    auto durability = Durability::open(env, config);
    PSD_REQUIRE_OK(durability);
    auto found = (*durability)->find();
    if (!found.ok()) return found.message();
    REQUIRE(*found);
    auto store = makeStore(1, kCounting);
    const Status restored = (*durability)->restore(**found, *store);
    REQUIRE_FALSE(restored.ok());
    return restored.message();
  };

  SECTION("the newest checkpoint: the next older one is used, and the log continues from there") {
    damage(paths[2] + "/shard-00000.safetensors", 200);
    CHECK(resumed(env, "auto") == 4.f);
    CHECK(refusal(paths[2]).find(paths[2] + "/shard-00000.safetensors' is damaged") != std::string::npos);
  }
  SECTION("all checkpoints: none is invented, and resume=none starts from scratch") {
    for (const std::string& path : paths) damage(path + "/manifest.json", 30);
    const std::string why = refusal("auto");
    CHECK(why.find("durability.resume=none starts from scratch") != std::string::npos);
    CHECK(why.find(paths[2] + "/manifest.json") != std::string::npos);
    CHECK(resumed(env, "none") == std::nullopt);
  }
  SECTION("the log: it is rejected with file and place, and resume=PATH ignores it") {
    // Between the older checkpoint and the newest, where the newest is lost.
    damage(paths[2] + "/manifest.json", 30);
    const uint64_t segment = readManifest(env, paths[1])->logSegment;
    const std::string path = segmentPath("/data", segment);
    std::string log;
    for (uint64_t i = segment; log.size() <= kSegmentHeaderBytes; i++)
      log = env.bytes(segmentPath("/data", i));
    env.put(path, log.substr(0, kSegmentHeaderBytes - 1) + '\x7f' + log.substr(kSegmentHeaderBytes));
    const std::string why = refusal("auto");
    CHECK(why.find("'" + path + "' is damaged: its header, bytes 0 to 63") != std::string::npos);
    CHECK(why.find("durability.resume=PATH") != std::string::npos);
    CHECK(resumed(env, paths[1]) == 2.f);
  }
  SECTION("no checkpoint, and a log based on one: nothing is invented, and resume=none starts from scratch") {
    for (const std::string& path : paths) PSD_REQUIRE_OK(env.remove(path + "/manifest.json"));
    const std::string why = refusal("auto");
    CHECK(why.find("'/data/log-") != std::string::npos);
    CHECK(why.find("there is no checkpoint in '/data'") != std::string::npos);
    CHECK(why.find("durability.resume=none") != std::string::npos);
    CHECK(resumed(env, "none") == std::nullopt);
  }
  SECTION("the first segment after the checkpoint: the later ones are not taken for all of the log") {
    PSD_REQUIRE_OK(env.remove(segmentPath("/data", readManifest(env, paths[2])->logSegment)));
    CHECK(refusal("auto").find("is missing") != std::string::npos);
    CHECK(resumed(env, paths[2]) == 3.f);
  }
  SECTION("no checkpoint at the given path") {
    CHECK(refusal("/elsewhere").find("there is no checkpoint in '/elsewhere'") != std::string::npos);
  }
}

TEST_CASE("a fresh run is saved in place of the previous one") {
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env, 2);
    REQUIRE(daemon.begin());
    // The same values under another cut, as of a model whose tensors a trainer has in another order.
    daemon.store = makeStore(3, kCounting);
    REQUIRE(daemon.begin());
    for (size_t shard = 0; shard < 3; shard++) {
      loop.wait(daemon.store->shard(shard).whenDurable(
          push(*daemon.store, shard, countingGradient(*daemon.store, shard), Step{1})));
    }
  }
  const Life after(env, 3);
  REQUIRE(after.store);
  CHECK(counts(*after.store) == std::vector<float>(3, 1.f));
}

TEST_CASE("updates before the damage of a log can still be rebuilt") {
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env, 1);
    REQUIRE(daemon.begin());
    for (uint64_t step = 1; step <= 4; step++) {
      loop.wait(daemon.store->shard(0).whenDurable(
          push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{step})));
    }
  }
  const std::string path = segmentPath("/data", highestSegment(env, "/data").value());
  std::string bytes = env.bytes(path);
  const size_t record = (bytes.size() - kSegmentHeaderBytes) / 4;
  bytes[kSegmentHeaderBytes + 2 * record + 90] ^= 1;
  env.put(path, bytes);
  CHECK(counts(**rebuild(env, "/data", Version{2})) == std::vector<float>{2.f});
  for (const auto& until : {std::optional<Version>(), std::optional(Version{3})}) {
    const auto beyond = rebuild(env, "/data", until);
    REQUIRE_FALSE(beyond.ok());
    CHECK(beyond.message().find("record 3 at byte") != std::string::npos);
  }
}

TEST_CASE("a log written with another number of shards is replayed before the model is cut again") {
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env, 2);
    REQUIRE(daemon.begin());
    for (uint64_t step = 1; step <= 5; step++) {
      for (size_t shard = 0; shard < 2; shard++) {
        loop.wait(daemon.store->shard(shard).whenDurable(
            push(*daemon.store, shard, countingGradient(*daemon.store, shard), Step{step})));
      }
    }
  }
  Life after(env, 5);
  REQUIRE(after.store);
  CHECK(counts(*after.store) == std::vector<float>(5, 5.f));
  CHECK(after.store->shard(0).pushed().ranges().front().pushes.at(0).step == Step{5});
  REQUIRE(after.begin());
  const auto logged = push(*after.store, 4, countingGradient(*after.store, 4), Step{6});
  loop.wait(after.store->shard(4).whenDurable(logged));
  after.durability = nullptr;
  const Life again(env, 5);
  REQUIRE(again.store);
  CHECK(counts(*again.store).at(4) == 6.f);
}

TEST_CASE("while the disk is full training continues, and later updates are durable again once it is not") {
  MemoryEnv env;
  TestLoop loop;
  auto config = logConfig();
  Life daemon(env, 2, config);
  REQUIRE(daemon.begin());
  const auto pushAll = [&](uint64_t step) {
    for (size_t shard = 0; shard < 2; shard++) {
      const auto logged = push(*daemon.store, shard, countingGradient(*daemon.store, shard), Step{step});
      loop.wait(daemon.store->shard(shard).whenDurable(logged));
    }
  };
  pushAll(1);
  env.fail({}, "No space left on device");
  pushAll(2);
  pushAll(3);
  const auto log = daemon.durability->status().log;
  REQUIRE(log);
  CHECK(log->failures >= 1);
  CHECK(log->error.find("No space left") != std::string::npos);
  env.heal();
  // The broken log alone makes the next checkpoint due.
  for (int i = 0; i < 3000 && daemon.durability->status().checkpoints != 2; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(daemon.durability->status().checkpoints == 2);
  CHECK(daemon.durability->status().log->error == "");
  pushAll(4);
  daemon.durability = nullptr;
  daemon.store = nullptr;
  env.restart(Survival::syncedOnly);
  const Life after(env);
  REQUIRE(after.store);
  CHECK(counts(*after.store) == std::vector<float>(2, 4.f));
}

TEST_CASE("any update can be rebuilt from checkpoint and log, bit for bit") {
  MemoryEnv env;
  TestLoop loop;
  auto config = logConfig();
  auto store = std::shared_ptr<ParameterStore>(makeStore(3, kAdam));
  std::vector<std::vector<std::vector<float>>> states;
  {
    auto durability = Durability::open(env, config);
    PSD_REQUIRE_OK(durability);
    PSD_REQUIRE_OK((*durability)->begin(lockedSource(store)));
    for (uint64_t step = 1; step <= 12; step++) {
      for (size_t shard = 0; shard < 3; shard++) {
        std::vector<float> gradient(store->shard(shard).range().count);
        for (size_t i = 0; i < gradient.size(); i++) {
          gradient[i] = std::sin(static_cast<float>(step * 100 + shard * 10 + i));
        }
        loop.wait(store->shard(shard).whenDurable(push(*store, shard, gradient, Step{step})));
      }
      states.push_back(contentOf(*store));
    }
  }
  for (uint64_t until = 1; until <= 12; until++) {
    auto rebuilt = rebuild(env, "/data", Version{until});
    PSD_REQUIRE_OK(rebuilt);
    REQUIRE(contentOf(**rebuilt) == states[until - 1]);
  }
  CHECK(contentOf(**rebuild(env, "/data", {})) == states.back());
  auto beyond = rebuild(env, "/data", Version{13});
  REQUIRE_FALSE(beyond.ok());
  CHECK(beyond.message().find("ends at 12") != std::string::npos);
}

TEST_CASE("segments that no kept checkpoint needs are removed, the others stay") {
  MemoryEnv env;
  for (uint64_t life = 0; life < 4; life++) {
    Life daemon(env);
    REQUIRE(daemon.store);
    REQUIRE(daemon.begin());
    push(*daemon.store, 0, countingGradient(*daemon.store, 0), Step{life + 1});
    PSD_REQUIRE_OK(daemon.durability->finish());
  }
  const auto kept = listCheckpoints(env, "/data", true).value();
  REQUIRE(kept.size() == 2);
  const uint64_t oldest = readManifest(env, checkpointPath("/data", kept[0]))->logSegment;
  const std::vector<std::string> names = env.list("/data").value();
  for (const std::string& name : names) {
    if (auto segment = segmentOf(name)) CHECK(*segment >= oldest);
  }
  // From the older one, as if the newest were damaged, the log leads to the same state.
  PSD_REQUIRE_OK(env.remove(checkpointPath("/data", kept[1]) + "/shard-00000.safetensors"));
  const Life last(env);
  REQUIRE(last.store);
  CHECK(counts(*last.store)[0] == 4.f);
}

TEST_CASE("two daemons do not share a folder") {
  MemoryEnv env;
  Life first(env);
  REQUIRE(first.store);
  auto second = Durability::open(env, logConfig());
  REQUIRE_FALSE(second.ok());
  CHECK(second.message().find("durability.path: '/data' is in use by another daemon") != std::string::npos);
}

}  // namespace
}  // namespace psd::recovery_test
