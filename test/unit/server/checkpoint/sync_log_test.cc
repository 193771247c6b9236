#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "server/checkpoint/replay.h"
#include "test/contract/policy_trainer.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::sync_log_test {
namespace {

using namespace testing;

constexpr uint32_t kTrainers = 5;  // the minimum for krum
constexpr uint64_t kRounds = 5;
constexpr uint32_t kShards = 3;

using Content = std::vector<std::vector<float>>;

/// Trains from round `first` to `kRounds`. Returns the model after each of these. `records`: in the log
/// before.
std::vector<Content> train(ServedStore& served, TestLoop& loop, uint64_t first = 0, uint64_t records = 0) {
  std::vector<Content> states;
  Lanes lanes = served.store->makeLanes();
  std::vector<TrainerRef> trainers;
  for (uint32_t rank = 0; rank < kTrainers; rank++) {
    trainers.push_back({SessionId{rank + 1}, Rank{rank}, rank + 100});
    loop.wait(served.policy->join(trainers.back()));
  }
  for (uint64_t round = first; round < kRounds; round++) {
    std::vector<std::unique_ptr<Update>> updates;
    std::vector<kj::Promise<Result<PushAnswer>>> answers;
    for (const TrainerRef& trainer : trainers) {
      for (size_t i = 0; i < served.store->shardCount(); i++) {
        std::vector<float> gradient(served.shard(i).range().count);
        for (size_t at = 0; at < gradient.size(); at++) {
          gradient[at] = std::sin(static_cast<float>(round * 100 + trainer.rank.value * 10 + i + at));
        }
        updates.push_back(
            std::make_unique<Update>(served, lanes, i, Version{round}, gradient, trainer, Step{round + 1}));
        updates.back()->samples(trainer.rank.value + 1);
        answers.push_back(updates.back()->send({0, gradient.size()}));
      }
    }
    uint64_t logged = 0;
    for (auto& answer : answers) {
      const Result<PushAnswer> pushed = loop.wait(kj::mv(answer));
      PSD_REQUIRE_OK(pushed);
      logged = std::max(logged, pushed->logged);
    }
    // A trainer that pushed receives that number, and waits for it.
    records += served.store->shardCount();
    REQUIRE(logged == (served.shard(0).logs() ? records : 0));
    loop.wait(served.shard(0).whenDurable(logged));
    states.push_back(contentOf(*served.store));
  }
  return states;
}

const char* const kAtOnce = R"({"start_trainers": 5})";

ServedStore servedStore(const TestDevice& device) {
  return {device.make(), entryOf("sync"), optimizerOf(R"({"type": "adam", "lr": 0.01})"),
          500,           kShards,         kAtOnce};
}

std::unique_ptr<Durability> openDurability(Env& env) {
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  return std::move(*durability);
}

CheckpointSource sourceOf(ServedStore& served) {
  return lockedSource({std::shared_ptr<void>(), served.store.get()});
}

DEVICE_TEST("rounds are logged, and replayed bit for bit") {
  const std::string policy = GENERATE("sync", "local_sgd", "diloco"),
                    aggregator = GENERATE("mean", "median", "krum", "rda");
  MemoryEnv env;
  TestLoop loop;
  const std::string options = R"({"aggregator": {"type": ")" + aggregator + R"("}, "start_trainers": 5})";
  ServedStore served(device.make(), entryOf(policy), optimizerOf(R"({"type": "adam", "lr": 0.01})"), 500,
                     kShards, options.c_str());
  const auto durability = openDurability(env);
  PSD_REQUIRE_OK(durability->begin(sourceOf(served)));
  const auto states = train(served, loop);
  for (size_t i = 0; i < kShards; i++) {
    const std::vector<AppliedPush>& pushes = served.shard(i).pushed().ranges().front().pushes;
    REQUIRE(pushes.size() == kTrainers);
    for (const AppliedPush& push : pushes) {
      CHECK(push.incarnation == push.rank.value + 100);
      CHECK(push.step == Step{kRounds});
      CHECK(push.version == Version{kRounds});
    }
  }
  env.restart(Survival::syncedOnly);
  for (uint64_t until = 1; until <= kRounds; until++) {
    const auto rebuilt = rebuild(env, "/data", Version{until});
    PSD_REQUIRE_OK(rebuilt);
    INFO(policy << ", " << aggregator << ", round " << until);
    REQUIRE(contentOf(**rebuilt) == states[until - 1]);
  }
}

DEVICE_TEST("a round makes the same model whether it is logged or not") {
  MemoryEnv env;
  TestLoop loop;
  ServedStore plain = servedStore(device), logged = servedStore(device);
  const auto durability = openDurability(env);
  PSD_REQUIRE_OK(durability->begin(sourceOf(logged)));
  REQUIRE(train(logged, loop) == train(plain, loop));
}

/// The end of each record of a segment, and of its header.
std::vector<size_t> endsIn(const std::string& segment) {
  std::vector<size_t> ends = {kSegmentHeaderBytes};
  while (ends.back() < segment.size()) {
    const auto bytes = std::as_bytes(std::span(segment)).subspan(ends.back());
    const auto record = recordBytes(bytes.first<kRecordPrefixBytes>());
    REQUIRE(record);
    ends.push_back(ends.back() + *record);
  }
  return ends;
}

DEVICE_TEST("a round that is not in all shards when the daemon dies is left out, and repeated") {
  TestLoop loop;
  std::vector<Content> states;
  {
    ServedStore uninterrupted = servedStore(device);
    states = train(uninterrupted, loop);
  }
  for (size_t records = 0; records <= kRounds * kShards; records++) {
    INFO("after record " << records);
    MemoryEnv env;
    ServedStore before = servedStore(device);
    const Content initial = contentOf(*before.store);
    auto durability = openDurability(env);
    PSD_REQUIRE_OK(durability->begin(sourceOf(before)));
    train(before, loop);
    durability = nullptr;
    env.restart(Survival::everything);
    const std::string path = segmentPath("/data", 2), segment = env.bytes(path);
    const std::vector<size_t> ends = endsIn(segment);
    REQUIRE(ends.size() == kRounds * kShards + 1);
    env.put(path, segment.substr(0, ends[records]));

    const uint64_t whole = records / kShards;
    ServedStore after = servedStore(device);
    durability = openDurability(env);
    const auto found = durability->find();
    PSD_REQUIRE_OK(found);
    PSD_REQUIRE_OK(durability->restore(**found, *after.store));
    for (size_t i = 0; i < kShards; i++) REQUIRE(after.shard(i).version() == Version{whole});
    REQUIRE(contentOf(*after.store) == (whole == 0 ? initial : states[whole - 1]));
    ObjectReader options(nlohmann::ordered_json::parse(kAtOnce));
    after.policy = entryOf("sync").read(options).make({*after.store, 0, makeGradientPool(uint64_t{1} << 30)});
    PSD_REQUIRE_OK(durability->begin(sourceOf(after)));
    const auto replayedRounds = train(after, loop, whole, records);
    REQUIRE(replayedRounds ==
            std::vector<Content>(states.begin() + static_cast<int64_t>(whole), states.end()));
    durability = nullptr;
    for (uint64_t until = 1; until <= kRounds; until++) {
      const auto rebuilt = rebuild(env, "/data", Version{until});
      PSD_REQUIRE_OK(rebuilt);
      REQUIRE(contentOf(**rebuilt) == states[until - 1]);
    }
  }
}

TEST_CASE("after a crash at any operation all shards are at the same round") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const bool eachPartDurable = GENERATE(false, true);  // before the next shard's part is durable
  TestLoop loop;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    env.crashAt(point, 7);
    float acknowledged = 0, attempted = 0;
    for (int life = 0; life < 2; life++) {
      Life daemon(env, kShards);
      if (!daemon.store || !daemon.begin()) break;
      for (uint64_t step = 1; step <= 3; step++) {
        attempted++;
        // A daemon that dies before the last shard's part is durable lacks the others' as well.
        const uint64_t logged = pushRound(*daemon.store, Step{step}, [&](uint64_t part) {
          if (eachPartDurable) loop.wait(daemon.store->shard(0).whenDurable(part));
        });
        loop.wait(daemon.store->shard(0).whenDurable(logged));
        if (!env.crashed()) acknowledged++;
        if (step == 2) static_cast<void>(daemon.durability->finish());  // a checkpoint in between
      }
    }
    done = !env.crashed();
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    Life after(env, kShards);
    REQUIRE(after.store);
    const std::vector<float> found = counts(*after.store);
    REQUIRE(found == std::vector<float>(kShards, found[0]));
    REQUIRE(found[0] >= acknowledged);
    REQUIRE(found[0] <= attempted);
  }
}

TEST_CASE("an update that failed in a later shard is replayed as far as it got") {
  MemoryEnv env;
  TestLoop loop;
  {
    Life daemon(env);
    REQUIRE(daemon.begin());
    const auto part = [&](size_t shard, Step step, UpdatePart part) {
      return push(*daemon.store, shard, countingGradient(*daemon.store, shard), step, part);
    };
    part(0, Step{1}, UpdatePart::continues);
    part(0, Step{2}, UpdatePart::continues);
    part(1, Step{2}, UpdatePart::last);
    loop.wait(daemon.store->shard(0).whenDurable(part(0, Step{3}, UpdatePart::continues)));
  }
  const Life after(env);
  REQUIRE(after.store);
  CHECK(counts(*after.store) == std::vector<float>{2, 1});
}

}  // namespace
}  // namespace psd::sync_log_test
