#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "server/checkpoint/replay.h"
#include "test/contract/policy_trainer.h"
#include "test/unit/server/daemon_life.h"

namespace psd {
namespace {

using namespace testing;

constexpr uint32_t kTrainers = 5;  // krum takes no fewer
constexpr uint64_t kRounds = 5;

/// One of those that make rounds.
PolicyEntry entryOf(const std::string& type) {
  return *std::find_if(kPolicyList.begin(), kPolicyList.end(),
                       [&](const PolicyEntry& entry) { return entry.type == type; });
}

/// Trains `kRounds` rounds. Gives the model after each of them.
std::vector<std::vector<std::vector<float>>> train(ServedStore& served, TestLoop& loop) {
  std::vector<std::vector<std::vector<float>>> states;
  Lanes lanes = served.store->makeLanes();
  std::vector<TrainerRef> trainers;
  for (uint32_t rank = 0; rank < kTrainers; rank++) {
    trainers.push_back({SessionId{rank + 1}, Rank{rank}, rank + 100});
    loop.wait(served.policy->join(trainers.back()));
  }
  for (uint64_t round = 0; round < kRounds; round++) {
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
    // Who pushed is told that number, and waits for it.
    REQUIRE(logged == (served.shard(0).logs() ? (round + 1) * served.store->shardCount() : 0));
    loop.wait(served.shard(0).whenDurable(logged));
    states.push_back(contentOf(*served.store));
  }
  return states;
}

TEST_CASE("rounds are written down, and repeated bit for bit") {
  const std::string policy = GENERATE("sync", "local_sgd"), aggregator = GENERATE("mean", "median", "krum");
  MemoryEnv env;
  TestLoop loop;
  const std::string options = R"({"aggregator": {"type": ")" + aggregator + R"("}, "start_trainers": 5})";
  ServedStore served(entryOf(policy), optimizerOf(R"({"type": "adam", "lr": 0.01})"), 500, 3,
                     options.c_str());
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  PSD_REQUIRE_OK((*durability)->begin(lockedSource({std::shared_ptr<void>(), served.store.get()})));
  const auto states = train(served, loop);
  for (size_t i = 0; i < 3; i++) {
    const std::vector<AppliedPush>& pushes = served.shard(i).pushes();
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

TEST_CASE("a round makes the same model whether it is written down or not") {
  const char* const options = R"({"start_trainers": 5})";
  MemoryEnv env;
  TestLoop loop;
  const Optimizer optimizer = optimizerOf(R"({"type": "adam", "lr": 0.01})");
  ServedStore plain(entryOf("sync"), optimizer, 500, 3, options),
      logged(entryOf("sync"), optimizer, 500, 3, options);
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  PSD_REQUIRE_OK((*durability)->begin(lockedSource({std::shared_ptr<void>(), logged.store.get()})));
  REQUIRE(train(logged, loop) == train(plain, loop));
}

}  // namespace
}  // namespace psd
