// Replays of each policy's log for a model without one of its trainers, and of table rows.

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/checkpoint/blame.h"
#include "server/checkpoint/replay.h"
#include "test/contract/policy_trainer.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::replay_policies_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

constexpr uint64_t kSteps = 3;
constexpr auto kWithout = ReplayChoice::What::without, kOnly = ReplayChoice::What::only;

std::unique_ptr<Durability> logTo(Env& env, ServedStore& served) {
  auto durability = Durability::open(env, logConfig());
  PSD_REQUIRE_OK(durability);
  PSD_REQUIRE_OK((*durability)->begin(lockedSource({std::shared_ptr<void>(), served.store.get()})));
  return std::move(*durability);
}

/// Each of two trainers pushes a counting gradient for each of three steps.
void trainTwo(ServedStore& served, TestLoop& loop) {
  PolicyTrainer first(served, loop, Rank{0}), second(served, loop, Rank{1});
  const std::vector<float> gradient(served.store->layout().totalElements(), -1.f);
  for (uint64_t step = 0; step < kSteps; step++) {
    auto one = first.startAll(Version{step}, gradient).eagerlyEvaluate(nullptr);
    auto two = second.startAll(Version{step}, gradient).eagerlyEvaluate(nullptr);
    PSD_REQUIRE_OK(loop.wait(kj::mv(one)));
    PSD_REQUIRE_OK(loop.wait(kj::mv(two)));
  }
  for (size_t i = 0; i < served.store->shardCount(); i++) {
    loop.wait(served.shard(i).whenDurable(served.shard(i).logged()));
  }
}

/// By the contributing ranks, the number of shard updates that changed the model's only tensor.
std::map<std::vector<uint32_t>, uint64_t> blamed(Env& env) {
  std::optional<Blame> blame;
  const auto model = rebuildCounterfactual(
      env, "/data", {}, ReplayChoice(), [&](const ParameterStore& store) { return &blame.emplace(store); });
  PSD_REQUIRE_OK(model);
  std::map<std::vector<uint32_t>, uint64_t> updates;
  const auto document = nlohmann::json::parse(blame->json());
  for (const auto& each : document["tensors"][0]["by_rank"]) {
    updates[each["ranks"].get<std::vector<uint32_t>>()] = each["updates"].get<uint64_t>();
  }
  return updates;
}

}  // namespace

TEST_CASE("each policy's log yields a model without a trainer, or says why not") {
  for (const PolicyEntry& entry : kPolicyList) {
    INFO(entry.type);
    MemoryEnv env;
    TestLoop loop;
    ServedStore served(makeCpuBackend(), entry, subtracting(), 100, 2,
                       entry.traits.rounds ? R"({"start_trainers": 2})" : "{}", true);
    const auto durability = logTo(env, served);
    trainTwo(served, loop);
    const auto chosen = [&](ReplayChoice::What what, std::set<Rank> ranks) {
      return rebuildCounterfactual(env, "/data", {}, ReplayChoice(what, std::move(ranks)), {});
    };
    const auto without = chosen(kWithout, {Rank{1}}), only = chosen(kOnly, {Rank{0}});
    const auto both = chosen(kOnly, {Rank{0}, Rank{1}}), neither = chosen(kWithout, {Rank{0}, Rank{1}});
    PSD_REQUIRE_OK(both);
    PSD_REQUIRE_OK(neither);
    CHECK(counts(*both->store) == counts(*served.store));
    CHECK(counts(*neither->store) == std::vector<float>(2, 0.f));
    if (!entry.traits.rounds) {
      PSD_REQUIRE_OK(without);
      PSD_REQUIRE_OK(only);
      CHECK(counts(*without->store) == std::vector<float>(2, kSteps));
      CHECK(counts(*only->store) == std::vector<float>(2, kSteps));
      CHECK(blamed(env) == std::map<std::vector<uint32_t>, uint64_t>{{{0}, 2 * kSteps}, {{1}, 2 * kSteps}});
      continue;
    }
    const std::string what =
        entry.type == "allreduce" ? "an average (policy allreduce) of ranks 0, 1" : "a round of ranks 0, 1";
    CHECK_THAT(without.message(), Contains("--without: update 1 of shard 0 is of " + what));
    CHECK_THAT(only.message(), Contains("--only: update 1 of shard 0 is of " + what));
    CHECK_THAT(chosen(kWithout, {Rank{0}}).message(), Contains(what));
    CHECK(blamed(env) == std::map<std::vector<uint32_t>, uint64_t>{{{0, 1}, 2 * kSteps}});
  }
}

TEST_CASE("a trainer with a share in an average has pushed nothing") {
  MemoryEnv env;
  TestLoop loop;
  ServedStore served(makeCpuBackend(), entryOf("allreduce"), subtracting(), 100, 2,
                     R"({"start_trainers": 2})", true);
  const auto durability = logTo(env, served);
  trainTwo(served, loop);
  const auto rebuilt = rebuild(env, "/data", {});
  PSD_REQUIRE_OK(rebuilt);
  for (ParameterStore* const store : {served.store.get(), rebuilt->get()}) {
    const std::vector<PushedRange>& ranges = store->shard(0).pushed().ranges();
    REQUIRE(ranges.size() == 1);
    REQUIRE(ranges.front().pushes.size() == 1);
    CHECK(ranges.front().pushes.front().rank == Rank{0});
    CHECK(ranges.front().pushes.front().step == Step{kSteps});
  }
}

namespace {

/// A push of a rank: −1 for each of these rows, which count the pushes. Waits until it is durable.
void pushRows(RowShard& shard, TestLoop& loop, uint32_t rank, const std::vector<uint64_t>& ids) {
  const std::vector<RowRun> runs = {{0, static_cast<uint32_t>(ids.size())}};
  const std::vector<float> gradients(ids.size(), -1.f);
  const StagedRows part{{runs, ids}, gradients, nullptr};
  const UpdateScalars scalars = shard.scalars(shard.beginExclusiveUpdate());
  const Version version{scalars.number};
  shard.turnover().evictDue(version.value, part.rows);
  auto prepared = shard.turnover().prepare(part, version);
  PSD_REQUIRE_OK(prepared);
  PSD_REQUIRE_OK(shard.update(*prepared, {}, scalars, version));
  const UpdateSource source{Rank{rank}, 1, rank + 11, Step{scalars.number}, {}, 0};
  shard.endUpdate({.scalars = scalars,
                   .gradient = prepared->part.gradients,
                   .sources = {&source, 1},
                   .rows = prepared->part.rows,
                   .beside = prepared->beside()});
  loop.wait(shard.whenDurable(shard.logged()));
}

/// The only value of each row, by id.
std::map<uint64_t, float> rowsOf(const ParameterStore& store) {
  const RowTable& table = *store.rowShard(0).table(0);
  std::map<uint64_t, float> rows;
  RowCursor cursor;
  std::vector<RowEntry> entries;
  for (table.next(cursor, entries); !entries.empty(); table.next(cursor, entries)) {
    for (const RowEntry& entry : entries) {
      table.readPlane(0, std::vector{entry.row}, std::span(&rows[entry.id], 1));
    }
  }
  for (auto& [id, value] : rows) value = std::round(value);  // they start near 0
  return rows;
}

}  // namespace

TEST_CASE("rows that an omitted update evicted stay, and rows that it made are absent") {
  MemoryEnv env;
  TestLoop loop;
  ServedStore served(makeCpuBackend(), entryOf("locked"), subtracting(),
                     ModelSpec{"m", {{"w", DType::f32, {4}}}, {{"rows", 1, {}}}}, 1, "{}", true);
  served.store->setRowRules(0, {.rowsMax = 2, .evict = {EvictRule::By::leastRecent}});
  const auto durability = logTo(env, served);
  RowShard& shard = served.store->rowShard(0);
  pushRows(shard, loop, 0, {1});
  pushRows(shard, loop, 0, {2});
  pushRows(shard, loop, 1, {3});  // replaces row 1
  pushRows(shard, loop, 0, {2});
  pushRows(shard, loop, 0, {4});  // replaces row 3
  REQUIRE(rowsOf(*served.store) == std::map<uint64_t, float>{{2, 2.f}, {4, 1.f}});
  const auto chosen = [&](ReplayChoice::What what, Rank rank) {
    auto model = rebuildCounterfactual(env, "/data", {}, ReplayChoice(what, {rank}), {});
    PSD_REQUIRE_OK(model);
    return rowsOf(*model->store);
  };
  CHECK(chosen(kWithout, Rank{1}) == std::map<uint64_t, float>{{1, 1.f}, {2, 2.f}, {4, 1.f}});
  CHECK(chosen(kOnly, Rank{0}) == chosen(kWithout, Rank{1}));
  CHECK(chosen(kOnly, Rank{1}) == std::map<uint64_t, float>{{3, 1.f}});
}

}  // namespace psd::replay_policies_test
