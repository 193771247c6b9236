#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "server/checkpoint/durability.h"
#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/replay.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint_store.h"

namespace psd {
namespace {

using namespace testing;

const std::string kCounting = R"({"type": "sgd", "lr": 1})";  // with a gradient of −1 the model counts
const std::string kAdam = R"({"type": "adam", "lr": 0.01})";
constexpr SegmentHeader kFirst{1, 77, 5, 1};

/// One update under the lock, as a policy makes it. Its number in the log.
uint64_t push(ParameterStore& store, size_t index, const Gradient& gradient, Step step) {
  Lanes lanes = store.makeLanes();
  Shard& shard = store.shard(index);
  const uint64_t number = shard.beginUpdate();
  const UpdateScalars scalars{number, store.optimizer(0).learningRate(number)};
  PSD_REQUIRE_OK(
      waitFor<Status>([&](auto done) { shard.storage().apply(*lanes[0], 0, gradient, scalars, done); }));
  const UpdateSource source{Rank{3}, 32, 11, step, shard.version(), 0};
  shard.endUpdate({scalars, gradient, {&source, 1}});
  return shard.logged();
}

std::vector<float> countingGradient(const ParameterStore& store, size_t index) {
  return std::vector<float>(store.shard(index).range().count, -1.f);
}

Result<std::vector<LogRecord>> allRecords(Env& env, uint64_t history = kFirst.history) {
  std::vector<LogRecord> records;
  auto end = readLog(env, "/data", history, 1, [&](const LogRecord& record) {
    records.push_back(record);
    return Status();
  });
  if (!end.ok()) return end.error();
  return records;
}

TEST_CASE("the log gives back each update as it was, whatever its codec") {
  MemoryEnv env;
  auto codec = makeCodec("int8");
  PSD_REQUIRE_OK(codec);
  const std::vector<float> values = {1, -2, 3.5f, 0, 7};
  std::vector<uint64_t> encoded(((*codec)->encodedBytes(values.size()) + 7) / 8);
  auto* const bytes = reinterpret_cast<std::byte*>(encoded.data());
  PSD_REQUIRE_OK((*codec)->encode(values, 1, bytes));
  const std::span<const std::byte> code(bytes, (*codec)->encodedBytes(values.size()));
  const std::vector<UpdateSource> sources = {{Rank{1}, 32, 5, Step{6}, Version{7}, 8},
                                             {Rank{2}, 16, 9, Step{10}, Version{11}, 12}};
  {
    auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
    CHECK(log->append(ShardId{2}, {{41, 0.5}, values, sources}) == 1);
    CHECK(log->append(ShardId{0}, {{42, 0.25}, Gradient(**codec, code, values.size()), {}}) == 2);
  }
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 2);
  const LogRecord &plain = (*records)[0], &coded = (*records)[1];
  CHECK(plain.number == 1);
  CHECK(plain.shard == ShardId{2});
  CHECK(plain.scalars.number == 41);
  CHECK(plain.scalars.learningRate == 0.5);
  CHECK(std::vector<float>(plain.gradient().values().begin(), plain.gradient().values().end()) == values);
  REQUIRE(plain.sources.size() == 2);
  CHECK(plain.sources[1].rank == Rank{2});
  CHECK(plain.sources[1].samples == 16);
  CHECK(plain.sources[1].incarnation == 9);
  CHECK(plain.sources[1].step == Step{10});
  CHECK(plain.sources[1].basis == Version{11});
  CHECK(plain.sources[1].staleness == 12);
  REQUIRE(coded.codec);
  CHECK(coded.codec->spec() == (*codec)->spec());
  CHECK(std::memcmp(coded.gradient().bytes().data(), code.data(), code.size()) == 0);
}

TEST_CASE("many updates share one sync, and segments end where they are full") {
  MemoryEnv env;
  TestLoop loop;
  const std::vector<float> gradient(1000, 1.f);
  auto log = LogWriter::open(env, "/data", kFirst, 64 << 10);
  uint64_t last = 0;
  for (uint64_t i = 1; i <= 200; i++) last = log->append(ShardId{0}, {{i, 1.}, gradient, {}});
  loop.wait(log->whenDurable(last));
  CHECK(log->status()["syncs"].get<uint64_t>() < 200);
  log = nullptr;
  CHECK(highestSegment(env, "/data").value() > 1);
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 200);
  for (size_t i = 0; i < 200; i++) REQUIRE((*records)[i].scalars.number == i + 1);
}

TEST_CASE("a damaged byte anywhere ends the log before it, and never changes an update") {
  MemoryEnv env;
  {
    auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
    for (uint64_t i = 1; i <= 3; i++) {
      log->append(ShardId{0}, {{i, 1.}, std::vector<float>{1.f * static_cast<float>(i), 2}, {}});
    }
  }
  const std::string path = segmentPath("/data", 1), whole = env.bytes(path);
  const size_t record = (whole.size() - kSegmentHeaderBytes) / 3;
  for (size_t at = 0; at < whole.size(); at++) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    env.put(path, damaged);
    INFO("byte " << at);
    auto records = allRecords(env);
    PSD_REQUIRE_OK(records);
    const size_t before = at < kSegmentHeaderBytes ? 0 : (at - kSegmentHeaderBytes) / record;
    REQUIRE(records->size() == before);
    for (size_t i = 0; i < before; i++) {
      REQUIRE((*records)[i].gradient().values()[0] == static_cast<float>(i + 1));
    }
  }
  // With a segment after it, it is no torn tail.
  env.put(path, whole.substr(0, whole.size() - 1));
  LogWriter::open(env, "/data", {2, kFirst.history, kFirst.signature, 4}, 1 << 20);
  auto records = allRecords(env);
  REQUIRE_FALSE(records.ok());
  CHECK(records.message().find(path) != std::string::npos);
}

DurabilityConfig logConfig() {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::log;
  config.path = "/data";
  config.everySeconds = 0;
  config.keep = 2;
  return config;
}

CheckpointSource lockedSource(const std::shared_ptr<ParameterStore>& store) {
  CheckpointSource source;
  source.store = store;
  source.groups = [] { return std::vector<CheckpointSource::Group>{{"locked"}}; };
  return source;
}

/// A daemon's life as far as the disk goes: recovers, goes on, pushes, takes checkpoints. Until the power
/// fails.
struct Life {
  std::unique_ptr<Durability> durability;
  std::shared_ptr<ParameterStore> store;
  bool fresh = true;

  explicit Life(Env& env, uint32_t shards = 2, const DurabilityConfig& config = logConfig()) {
    spdlog::set_level(spdlog::level::off);  // thousands of crashes are meant
    auto opened = Durability::open(env, config);
    if (!opened.ok()) return;
    auto found = (*opened)->find();
    if (!found.ok()) return;
    auto made = makeStore(shards, kCounting);
    fresh = !*found;
    if (*found && !(*opened)->restore(**found, *made).ok()) return;
    store = std::move(made);
    durability = std::move(*opened);
  }
  /// False when the base could not be taken: nothing is promised then.
  bool begin() {
    auto base = durability->begin(lockedSource(store));
    return !base || base().ok();
  }
};

/// The whole of a counting model, padding aside: every element of a shard counts the same.
std::vector<float> counts(ParameterStore& store) {
  std::vector<float> result;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Lanes lanes = store.makeLanes();
    auto view = waitFor<Result<ReadView>>(
        [&](auto done) { store.shard(i).storage().read(*lanes[0], 0, store.shard(i).range().count, done); });
    PSD_REQUIRE_OK(view);
    for (float value : view->values) REQUIRE(value == view->values[0]);
    result.push_back(view->values[0]);
  }
  return result;
}

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
        for (size_t shard = 0; shard < 2; shard++) {
          const uint64_t logged =
              push(*daemon.store, shard, countingGradient(*daemon.store, shard), Step{step});
          attempted[shard]++;
          loop.wait(daemon.store->shard(shard).whenDurable(logged));
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
    // And life goes on from there, through another orderly end.
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

TEST_CASE("a log that another number of shards wrote is replayed before the model is cut anew") {
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
  CHECK(after.store->shard(0).pushes().at(0).step == Step{5});
  REQUIRE(after.begin());
  const auto logged = push(*after.store, 4, countingGradient(*after.store, 4), Step{6});
  loop.wait(after.store->shard(4).whenDurable(logged));
  after.durability = nullptr;
  const Life again(env, 5);
  REQUIRE(again.store);
  CHECK(counts(*again.store).at(4) == 6.f);
}

TEST_CASE("while the disk is full training goes on, and what follows is safe again once it is not") {
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
  const auto log = daemon.durability->status()["log"];
  CHECK(log["failures"].get<uint64_t>() >= 1);
  CHECK(log["error"].get<std::string>().find("No space left") != std::string::npos);
  env.heal();
  // The broken log alone makes the next checkpoint due.
  for (int i = 0; i < 3000 && daemon.durability->status()["checkpoints"] != 2; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(daemon.durability->status()["checkpoints"] == 2);
  CHECK(daemon.durability->status()["log"]["error"] == "");
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
    PSD_REQUIRE_OK((*durability)->begin(lockedSource(store))());
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
  // From the older one, as if the newest were damaged, the log leads to the same place.
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
  CHECK(second.message().find("'/data' is another daemon's") != std::string::npos);
}

}  // namespace
}  // namespace psd
