#include <set>
#include <vector>

#include "server/checkpoint/replay.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::replay_choice_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

/// One counting update of the only shard, of a push of each of these ranks. Waits until it is durable.
void pushOf(Life& daemon, TestLoop& loop, const std::vector<uint32_t>& ranks) {
  Shard& shard = daemon.store->shard(0);
  Lanes lanes = daemon.store->makeLanes();
  const std::vector<float> gradient = countingGradient(*daemon.store, 0);
  const UpdateScalars scalars = shard.scalars(shard.beginUpdate());
  PSD_REQUIRE_OK(
      waitFor<Status>([&](auto done) { shard.storage().apply(*lanes[0], 0, gradient, scalars, done); }));
  std::vector<UpdateSource> sources;
  for (uint32_t rank : ranks) sources.push_back({Rank{rank}, 32, rank + 11, Step{scalars.number}, {}, 0});
  shard.endUpdate({scalars, gradient, sources, UpdatePart::whole});
  loop.wait(shard.whenDurable(shard.logged()));
}

/// A life with updates of these ranks, ended by a checkpoint.
void live(MemoryEnv& env, const DurabilityConfig& config, const std::vector<uint32_t>& ranks) {
  TestLoop loop;
  Life daemon(env, 1, config);
  REQUIRE(daemon.store);
  REQUIRE(daemon.begin());
  for (uint32_t rank : ranks) pushOf(daemon, loop, {rank});
  PSD_REQUIRE_OK(daemon.durability->finish());
}

DurabilityConfig keeping(uint32_t checkpoints) {
  DurabilityConfig config = logConfig();
  config.keep = checkpoints;
  return config;
}

Result<CounterfactualModel> chosen(Env& env, ReplayChoice::What what, const std::set<Rank>& ranks,
                                   std::optional<Version> until = {}) {
  return rebuildCounterfactual(env, "/data", until, ReplayChoice(what, ranks), {});
}

constexpr auto kWithout = ReplayChoice::What::without, kOnly = ReplayChoice::What::only;

TEST_CASE("a trainer's updates are left out from the first checkpoint on") {
  MemoryEnv env;
  live(env, keeping(4), {0, 1, 0});
  live(env, keeping(4), {1, 0, 2});
  const auto without = chosen(env, kWithout, {Rank{1}});
  PSD_REQUIRE_OK(without);
  CHECK(counts(*without->store) == std::vector<float>{4.f});
  CHECK(without->store->shard(0).version() == Version{4});
  CHECK(without->since == Version{0});
  CHECK(without->applied == 4);
  CHECK(without->leftOut == 2);
  CHECK(counts(*chosen(env, kOnly, {Rank{1}})->store) == std::vector<float>{2.f});
  CHECK(counts(*chosen(env, kWithout, {Rank{1}, Rank{2}})->store) == std::vector<float>{3.f});
  // By the log's numbers, also where they precede the newest checkpoint.
  CHECK(counts(*chosen(env, kWithout, {Rank{1}}, Version{2})->store) == std::vector<float>{1.f});
  CHECK(counts(*chosen(env, kWithout, {Rank{1}}, Version{5})->store) == std::vector<float>{3.f});
  CHECK_THAT(chosen(env, kWithout, {Rank{1}}, Version{9}).message(), Contains("which ends at 6"));
  CHECK(chosen(env, kOnly, {Rank{7}}).message() ==
        "--only: the log has no update of rank 7; expected one of 0, 1, 2");
}

TEST_CASE("updates in the oldest kept checkpoint stay") {
  MemoryEnv env;
  live(env, keeping(1), {0, 1, 0});
  live(env, keeping(1), {});
  TestLoop loop;
  Life daemon(env, 1, keeping(1));
  REQUIRE(daemon.begin());
  pushOf(daemon, loop, {1});
  pushOf(daemon, loop, {0});
  const auto without = chosen(env, kWithout, {Rank{1}});
  PSD_REQUIRE_OK(without);
  CHECK(without->since == Version{3});
  CHECK(counts(*without->store) == std::vector<float>{4.f});
  CHECK(without->leftOut == 1);
}

TEST_CASE("a round cannot be replayed with only some of its contributions left out") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env, 1, keeping(3));
  REQUIRE(daemon.begin());
  pushOf(daemon, loop, {0, 1});
  pushOf(daemon, loop, {1, 2});
  CHECK_THAT(chosen(env, kWithout, {Rank{1}}).message(),
             Contains("update 1 of shard 0 is of a round of ranks 0, 1"));
  CHECK_THAT(chosen(env, kOnly, {Rank{0}, Rank{1}}).message(), Contains("--only: update 2 of shard 0"));
  const auto all = chosen(env, kOnly, {Rank{0}, Rank{1}, Rank{2}});
  PSD_REQUIRE_OK(all);
  CHECK(counts(*all->store) == std::vector<float>{2.f});
  CHECK(counts(*chosen(env, kWithout, {Rank{0}, Rank{1}, Rank{2}})->store) == std::vector<float>{0.f});
}

}  // namespace
}  // namespace psd::replay_choice_test
