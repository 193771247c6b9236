// Row shards: their validation, snapshots during updates, and the combination of rows of several trainers.

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "server/policy/merged_rows.h"
#include "server/store/parameter_store.h"
#include "server/store/rows/row_snapshot.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/row_ids.h"
#include "test/support/test_device.h"

namespace psd::row_shard_test {
namespace {

using testing::idOfHash;
using testing::mixedId;
using testing::Random;

constexpr uint32_t kA = 0, kB = 1;

std::unique_ptr<ParameterStore> makeStore(uint32_t rowShards, const Optimizer& optimizer = {Sgd{}, 1.0, {}}) {
  const ModelSpec model{"m", {}, {{"a", 4, {RowInitial::Kind::uniform, 1.f, 5}}, {"b", 2, {}}}};
  StoreGroups groups{{}, {optimizer}, {0, 0}, rowShards};
  auto store = ParameterStore::create(model, 1, {testing::testBackend()}, groups);
  PSD_REQUIRE_OK(store);
  return std::move(*store);
}

/// A gradient of `value` for each of the rows.
struct Part {
  std::vector<RowRun> runs;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;

  void add(uint32_t table, std::vector<uint64_t> rows, float value) {
    runs.push_back({table, static_cast<uint32_t>(rows.size())});
    ids.insert(ids.end(), rows.begin(), rows.end());
    gradients.insert(gradients.end(), rows.size() * (table == kA ? 4 : 2), value);
  }
  StagedRows staged() const { return {{runs, ids}, gradients, nullptr}; }
};

void update(RowShard& shard, const Part& part) {
  const uint64_t number = shard.beginExclusiveUpdate();
  PSD_REQUIRE_OK(shard.update(part.staged(), {}, shard.scalars(number)));
  shard.endUpdate();
}

std::vector<float> valuesOf(const RowShard& shard, uint32_t table, std::vector<uint64_t> ids) {
  const RowRun run{table, static_cast<uint32_t>(ids.size())};
  std::vector<float> values(ids.size() * (table == kA ? 4 : 2));
  shard.gather({{&run, 1}, ids}, values);
  return values;
}

TEST_CASE("row shards divide the space of hashes, each id in one of them") {
  const auto store = makeStore(GENERATE(1u, 2u, 3u, 7u));
  REQUIRE(store->shardCount() == 0);
  CHECK(store->rowShard(0).hashes().first == 0);
  CHECK(store->rowShard(store->rowShardCount() - 1).hashes().last == UINT64_MAX);
  Random random(1);
  for (int i = 0; i < 1000; i++) {
    const uint64_t id = mixedId(random);
    const RowRun run{kA, 1};
    int holders = 0;
    for (size_t shard = 0; shard < store->rowShardCount(); shard++) {
      holders += store->rowShard(shard).check({{&run, 1}, {&id, 1}}).ok();
    }
    REQUIRE(holders == 1);
  }
}

TEST_CASE("row shards are distributed over the devices, after the shards") {
  const ModelSpec model{"m", {{"w", DType::f32, {16}}}, {{"a", 4, {}}}};
  StoreGroups groups{{0}, {{Sgd{}, 1.0, {}}}, {0}, 3};
  const auto store = ParameterStore::create(model, 1, {testing::testBackend(), makeCpuBackend()}, groups);
  PSD_REQUIRE_OK(store);
  REQUIRE((*store)->blockCount() == 4);
  for (size_t i = 0; i < 4; i++) CHECK((*store)->block(i).device() == i % 2);
}

TEST_CASE("rows that do not match their declaration are rejected") {
  const auto store = makeStore(2);
  const RowShard& shard = store->rowShard(0);
  const auto refusal = [&](std::vector<RowRun> runs, std::vector<uint64_t> ids) {
    const Status status = shard.check({runs, ids});
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::badSlice);
    return status.message();
  };
  const uint64_t mine = idOfHash(17), others = idOfHash(UINT64_MAX - 17);
  CHECK(shard.check({}).ok());
  CHECK(refusal({{kA, 1}, {kB, 0}}, {mine}).find("a run of table 1 has no ids") != std::string::npos);
  CHECK(refusal({{2, 1}}, {mine}).find("table 2 is not in it; its tables are 0, 1") != std::string::npos);
  CHECK(refusal({{kA, 2}}, {mine}).find("cover 2 ids, not the 1 ids given") != std::string::npos);
  CHECK(refusal({{kA, 1}, {kB, UINT32_MAX}}, {mine}).find("not the 1 ids given") != std::string::npos);
  CHECK(refusal({{kA, 1}}, {others}).find("0xffffffffffffffee") != std::string::npos);
}

TEST_CASE("a table without space leaves no row of another behind") {
  const ModelSpec model{"m", {}, {{"a", 4, {}}, {"b", 2, {}}}};
  StoreGroups groups{{}, {{Sgd{}, 1.0, {}}}, {0, 0}};
  auto store = ParameterStore::create(model, 1, {testing::testBackend()}, groups);
  PSD_REQUIRE_OK(store);
  (*store)->setRowRules(kB, {.rowsMax = 2});
  RowShard& shard = (*store)->rowShard(0);
  Part part;
  part.add(kA, {1, 2, 3}, 1);
  part.add(kB, {1, 2, 3}, 1);
  const Status full = shard.update(part.staged(), {}, shard.scalars(shard.beginExclusiveUpdate()));
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code == ErrorCode::overloaded);
  CHECK(shard.size().rows == 0);
  CHECK(shard.tables()[kA].counts->refused == 3);
  CHECK(shard.tables()[kB].counts->refused == 3);
  CHECK(shard.tables()[kA].counts->created == 0);
}

TEST_CASE("rows that would exceed limits.table_bytes are not created, in any number") {
  const auto store = makeStore(1);
  RowShard& shard = store->rowShard(0);
  Part part;
  std::vector<uint64_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  part.add(kA, ids, 1);
  store->setTableBytesMax(1000);
  const Status full = shard.update(part.staged(), {}, shard.scalars(shard.beginExclusiveUpdate()));
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code == ErrorCode::overloaded);
  CHECK(full.message().find("limits.table_bytes is 1000") != std::string::npos);
  CHECK(shard.size().rows == 0);
  Part repeated;  // of few rows
  repeated.add(kA, std::vector<uint64_t>(1000, 7), 1);
  store->setTableBytesMax(shard.table(kA)->bytesFor(1) + 100'000);
  update(shard, repeated);
  CHECK(shard.size().rows == 1);
}

TEST_CASE("created rows can be rolled back") {
  const auto store = makeStore(1);
  RowShard& shard = store->rowShard(0);
  Part part;
  part.add(kA, {1, 2}, 1);
  update(shard, part);
  Part more;
  more.add(kA, {2, 3, 3}, 1);
  more.add(kB, {9}, 1);
  const auto prepared = shard.turnover().prepare(more.staged(), Version{2});
  PSD_REQUIRE_OK(prepared);
  CHECK(shard.size().rows == 4);
  PSD_REQUIRE_OK(shard.turnover().rollBack(prepared->created));
  CHECK(shard.size().rows == 2);
  const RowShardTable::Counts& a = *shard.tables()[kA].counts;
  const RowShardTable::Counts& b = *shard.tables()[kB].counts;
  CHECK(a.created == 2);
  CHECK(a.refused == 1);
  CHECK(b.created == 0);
  CHECK(b.refused == 1);
  update(shard, more);  // repeated, and fits now
  CHECK(a.created == 3);
  CHECK(b.created == 1);
}

TEST_CASE("an update without a lock takes one guard, and so does not wait for a waiter on itself") {
  const auto store = makeStore(1);
  RowShard& shard = store->rowShard(0);
  Part part;
  part.add(kA, {1, 2}, 1);
  part.add(kB, {9}, 1);
  update(shard, part);
  Epochs& epochs = shard.table(kA)->epochs();
  std::vector<std::unique_ptr<Epochs::Guard>> others;
  for (uint32_t i = 1; i < Epochs::kGuardsMax; i++) others.push_back(std::make_unique<Epochs::Guard>(epochs));
  auto updated = std::async(std::launch::async, [&] {
    return shard.applyRacing(part.staged().rows, part.gradients, {}, shard.scalars(shard.beginUpdate()));
  });
  const bool ended = updated.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  others.clear();
  CHECK(ended);
  CHECK(updated.get().empty());
}

/// The content of a snapshot, by table and id.
using Content = std::map<std::pair<uint32_t, uint64_t>, std::pair<uint64_t, std::vector<float>>>;

Content contentOf(RowSnapshot& snapshot, const std::function<void()>& between) {
  Content content;
  RowPiece piece;
  while (snapshot.next(piece)) {
    for (size_t i = 0; i < piece.ids.size(); i++) {
      std::vector<float> values;
      for (const auto& plane : piece.planes) {
        const size_t width = plane.size() / piece.ids.size();
        values.insert(values.end(), plane.begin() + static_cast<ptrdiff_t>(i * width),
                      plane.begin() + static_cast<ptrdiff_t>((i + 1) * width));
      }
      // Each row appears once.
      REQUIRE(content.emplace(std::pair(piece.table, piece.ids[i]), std::pair(piece.metas[i].word, values))
                  .second);
    }
    between();
  }
  CHECK(snapshot.heldBytes() == 0);
  return content;
}

TEST_CASE("a snapshot has one version, whatever concurrent updates do") {
  const auto seed = GENERATE(range(0, 8));
  Random random(seed);
  Optimizer adam;
  adam.algorithm = Adam{};
  const auto store = makeStore(1, adam);
  RowShard& shard = store->rowShard(0);
  const auto draw = [&](size_t count) {
    Part part;
    for (const uint32_t table : {kA, kB}) {
      std::vector<uint64_t> ids(count);
      for (uint64_t& id : ids) id = random.below(30'000);
      part.add(table, ids, static_cast<float>(random.between(1, 5)));
    }
    return part;
  };
  for (int i = 0; i < 5; i++) update(shard, draw(6'000));
  Content before;
  {
    RowSnapshot still(shard, false);
    before = contentOf(still, [] {});
  }
  CHECK(before.size() == shard.size().rows);
  RowSnapshot snapshot(shard, false);
  CHECK(snapshot.version() == Version{5});
  const Content during = contentOf(snapshot, [&] { update(shard, draw(random.below(3'000))); });
  CHECK(during == before);
  CHECK(shard.size().rows > before.size());
  CHECK(shard.version() > Version{5});
}

TEST_CASE("gradients of the same rows become their weighted sum, each row once and in one order") {
  const auto store = makeStore(1);
  const RowShard& shard = store->rowShard(0);
  Part first, second, third;
  first.add(kB, {5, 7}, 1);
  first.add(kA, {1, 2, 1}, 1);  // row 1 twice
  second.add(kA, {2, 3}, 10);
  third.add(kA, {1}, 1000);  // of weight 0
  const std::vector<StagedRows> parts = {first.staged(), second.staged(), third.staged()};
  const std::vector<float> weights = {0.5f, 0.25f, 0};
  const StagedRows merged = mergeRows(shard, parts, weights);
  REQUIRE(std::ranges::equal(merged.rows.runs, std::vector<RowRun>{{kA, 3}, {kB, 2}}));
  std::map<uint64_t, float> ofA;
  for (size_t i = 0; i < 3; i++) ofA[merged.rows.ids[i]] = merged.gradients[i * 4];
  CHECK(ofA == std::map<uint64_t, float>{{1, 1.f}, {2, 3.f}, {3, 2.5f}});
  CHECK(rowHash(merged.rows.ids[0]) < rowHash(merged.rows.ids[1]));
  CHECK(merged.gradients[12] == 0.5f);
  // The order of contributors, runs and rows makes no difference.
  Part turned;
  turned.add(kA, {1, 1, 2}, 1);
  turned.add(kB, {7, 5}, 1);
  const std::vector<StagedRows> again = {turned.staged(), second.staged(), third.staged()};
  CHECK(std::ranges::equal(mergeRows(shard, again, weights).gradients, merged.gradients));
  CHECK(mergeRows(shard, {}, {}).rows.empty());
}

TEST_CASE("only the rows of a part in a range of hashes are used") {
  const auto store = makeStore(2);
  const RowShard& shard = store->rowShard(1);
  const uint64_t begin = shard.range().begin;
  Part part;
  part.add(kA, {idOfHash(begin << 32), idOfHash((begin + 9) << 32), idOfHash((begin + 10) << 32)}, 1);
  part.add(kB, {idOfHash((begin + 20) << 32)}, 2);
  const StagedRows some = shard.rowsIn(part.staged(), {{.begin = 0, .count = 10}, {.begin = 20, .count = 1}});
  CHECK(some.rows.ids.size() == 3);
  CHECK(std::ranges::equal(some.rows.runs, std::vector<RowRun>{{kA, 2}, {kB, 1}}));
  CHECK(some.gradients.size() == 2 * 4 + 2);
  CHECK(valuesOf(shard, kB, {part.ids[3]}).size() == 2);
}

}  // namespace
}  // namespace psd::row_shard_test
