// Tables whose rows are admitted and evicted by rules: compared with a plain map, replayed from the log, with
// concurrent readers.

#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "server/checkpoint/log_format.h"
#include "server/checkpoint/replay.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/row_ids.h"
#include "test/support/row_rules_model.h"
#include "test/support/row_shard_content.h"

namespace psd::row_rules_test {
namespace {

using testing::Random;
using testing::RowRulesModel;
using By = EvictRule::By;

const std::vector<TableSpec> kTables = {{"a", 4, {RowInitial::Kind::uniform, 1.f, 5}}, {"b", 2, {}}};

std::unique_ptr<ParameterStore> makeStore(double momentum = 0) {
  StoreGroups groups{{}, {{Sgd{.momentum = momentum}, 1.0, {}}}, {0, 0}};
  auto store = ParameterStore::create({"m", {}, kTables}, 1, {makeCpuBackend()}, groups);
  PSD_REQUIRE_OK(store);
  return std::move(*store);
}

/// Keeps the records that a log would write. Owned by one thread.
class KeptLog final : public UpdateLog {
 public:
  kj::Promise<ByteBudget::Lease> space(uint64_t) override { return ByteBudget::Lease(); }
  uint64_t append(const BufferSet&, ByteBudget::Lease) override { return 0; }
  kj::Promise<void> whenDurable(uint64_t) override { return kj::READY_NOW; }
  uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease) override {
    std::vector<std::byte> bytes;
    appendRecord(bytes, records.size() + 1, shard, update);
    REQUIRE(bytes.size() == recordBytes(update));
    sealRecords(bytes, records.size() + 1);
    records.push_back(std::move(bytes));
    return records.size();
  }

  std::vector<std::vector<std::byte>> records;
};

/// Gradients of rows of both tables.
struct Push {
  std::vector<RowRun> runs;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;

  void add(uint32_t table, const std::vector<uint64_t>& rows, const std::vector<float>& values) {
    if (rows.empty()) return;
    runs.push_back({table, static_cast<uint32_t>(rows.size())});
    ids.insert(ids.end(), rows.begin(), rows.end());
    gradients.insert(gradients.end(), values.begin(), values.end());
  }
  StagedRows staged() const { return {{runs, ids}, gradients, nullptr}; }
  std::vector<RowRulesModel::Part> parts() const {
    std::vector<RowRulesModel::Part> parts;
    size_t id = 0, value = 0;
    for (const RowRun& run : runs) {
      const size_t values = run.count * kTables[run.table].dim;
      parts.push_back(
          {run.table, std::span(ids).subspan(id, run.count), std::span(gradients).subspan(value, values)});
      id += run.count;
      value += values;
    }
    return parts;
  }
};

Push drawPush(Random& random, uint64_t ids) {
  Push push;
  for (uint32_t table = 0; table < kTables.size(); table++) {
    std::vector<uint64_t> rows(random.below(14));
    for (uint64_t& id : rows) id = random.below(ids) << (table * 20);
    std::vector<float> values(rows.size() * kTables[table].dim);
    for (float& value : values) value = static_cast<float>(random.between(0, 8)) / 4 - 1;
    push.add(table, rows, values);
  }
  return push;
}

RowRules drawRules(Random& random) {
  RowRules rules;
  if (random.oneIn(2)) rules.rowsMax = random.between(5, 30);
  switch (random.below(4)) {
    case 0: break;
    case 1: rules.evict = {By::age, random.between(1, 20)}; break;
    case 2: rules.evict = {By::norm, random.between(1, 5), 0.5}; break;
    default: rules.rowsMax = random.between(5, 30); rules.evict = {By::leastRecent};
  }
  switch (random.below(3)) {
    case 0: break;
    case 1:
      rules.admit = {.pushes = static_cast<uint32_t>(random.between(3, 5)), .counters = 64 << 12};
      break;
    default: rules.admit = {.probability = 0.5};
  }
  return rules;
}

/// One update under the lock, as a policy makes it.
Status update(RowShard& shard, const Push& push) {
  const UpdateScalars scalars = shard.scalars(shard.beginExclusiveUpdate());
  const Version version{scalars.number};
  const StagedRows part = push.staged();
  shard.turnover().evictDue(version.value, part.rows);
  PSD_ASSIGN_OR_RETURN(PreparedRows prepared, shard.turnover().prepare(part, version));
  PSD_REQUIRE_OK(shard.update(prepared, {}, scalars, version));
  shard.endUpdate({.scalars = scalars,
                   .gradient = prepared.part.gradients,
                   .rows = prepared.part.rows,
                   .beside = prepared.beside()});
  return {};
}

/// All rows of a table, read by iteration.
RowRulesModel::Rows contentOf(const RowShard& shard, uint32_t table) {
  const RowTable& rows = *shard.table(table);
  RowRulesModel::Rows content;
  RowCursor cursor;
  std::vector<RowEntry> entries;
  for (rows.next(cursor, entries); !entries.empty(); rows.next(cursor, entries)) {
    for (const RowEntry& entry : entries) {
      RowRulesModel::Row& row = content[entry.id];
      row.version = rows.meta(entry.row).version();
      row.values.resize(rows.dim());
      rows.readPlane(0, std::vector{entry.row}, row.values);
    }
  }
  CHECK(content.size() == rows.size().rows);
  return content;
}

TEST_CASE("rows are created and evicted by the rules, and replayed from the log identically") {
  const uint64_t schedules = GENERATE(range(0, 8));
  uint64_t evicted = 0, notAdmitted = 0, refused = 0;
  for (uint64_t seed = schedules * 300; seed < (schedules + 1) * 300; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const auto store = makeStore(), again = makeStore();
    RowShard& shard = store->rowShard(0);
    const auto log = std::make_shared<KeptLog>();
    shard.setLog(log);
    RowRulesModel model(kTables, {{}, {}}, 1);
    for (uint32_t table = 0; table < kTables.size(); table++) {
      const RowRules rules = drawRules(random);
      store->setRowRules(table, rules);
      model.setRules(table, rules);
    }
    const uint64_t ids = random.between(5, 60);
    for (int i = 0; i < 14; i++) {
      const Push push = drawPush(random, ids);
      const uint64_t number = shard.version().value + 1;
      const Status made = update(shard, push);
      REQUIRE(made.ok() == model.update(number, push.parts()));
      if (!made.ok()) REQUIRE(made.error().code == ErrorCode::overloaded);
      refused += !made.ok();
      for (uint32_t table = 0; table < kTables.size(); table++) {
        REQUIRE(contentOf(shard, table) == model.rows(table));
      }
    }
    PSD_REQUIRE_OK(update(shard, {}));  // logs what the last one evicted, if it was rejected
    CHECK(model.update(shard.version().value, {}));
    Replayer replayer(*again);
    for (const auto& bytes : log->records) {
      auto record = parseRecord(bytes);
      PSD_REQUIRE_OK(record);
      REQUIRE(record->has_value());
      PSD_REQUIRE_OK(replayer.apply(**record));
    }
    for (uint32_t table = 0; table < kTables.size(); table++) {
      REQUIRE(contentOf(again->rowShard(0), table) == model.rows(table));
      const AdmissionFilter* const counted = shard.tables()[table].gate->filter();
      const AdmissionFilter* const replayed = again->rowShard(0).tables()[table].gate->filter();
      REQUIRE((replayed ? replayed->saved() : std::vector<uint64_t>()) ==
              (counted ? counted->saved() : std::vector<uint64_t>()));
    }
    evicted += model.evicted();
    notAdmitted += model.notAdmitted();
  }
  CHECK(evicted > 500);
  CHECK(notAdmitted > 500);
  CHECK(refused > 20);
}

/// Rules whose filters are so small that they decay and confuse ids.
RowRules drawSmallFilter(Random& random) {
  RowRules rules = drawRules(random);
  if (random.oneIn(2)) {
    rules.admit = {.pushes = static_cast<uint32_t>(random.between(2, 4)),
                   .counters = uint64_t{64} << random.below(4)};
    if (random.oneIn(4)) rules.admit.probability = 0.5;
  }
  return rules;
}

void repeatNewest(Replayer& replayer, const KeptLog& log) {
  auto record = parseRecord(log.records.back());
  PSD_REQUIRE_OK(record);
  REQUIRE(record->has_value());
  PSD_REQUIRE_OK(replayer.apply(**record));
}

TEST_CASE("a replica that replays a log has its rows and counts after each record, under any own rules") {
  uint64_t evicted = 0, notAdmitted = 0, changes = 0;
  for (uint64_t seed = 0; seed < 60; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const auto primary = makeStore(0.5), standby = makeStore(0.5);
    RowShard &shard = primary->rowShard(0), &other = standby->rowShard(0);
    const auto log = std::make_shared<KeptLog>(), kept = std::make_shared<KeptLog>();
    shard.setLog(log);
    other.setLog(kept);  // like a follower on its own disk
    Replayer replayer(*standby);
    const bool narrow = random.oneIn(2);
    standby->setTableBytesMax(narrow ? 1 : UINT64_MAX);
    const uint64_t ids = random.between(20, 400);
    for (int i = 0; i < 250; i++) {
      if (i == 0 || random.oneIn(25)) {
        changes++;
        for (uint32_t table = 0; table < kTables.size(); table++) {
          primary->setRowRules(table, drawSmallFilter(random));
          standby->setRowRules(table, drawSmallFilter(random));
        }
        const RowTableSize size = shard.size();
        primary->setTableBytesMax(random.oneIn(3) ? size.bytes + size.indexBytes + 30'000 : UINT64_MAX);
      }
      if (!update(shard, drawPush(random, ids)).ok()) continue;  // the next record carries what it evicted
      repeatNewest(replayer, *log);
      REQUIRE(testing::contentOf(other) == testing::contentOf(shard));
      REQUIRE(kept->records.back() == log->records.back());
    }
    for (const RowShardTable& table : shard.tables()) {
      evicted += table.counts->evicted;
      notAdmitted += table.counts->notAdmitted;
    }
    // From here on the replica decides, and by the same rules it decides equally.
    for (ParameterStore* const store : {primary.get(), standby.get()}) store->setTableBytesMax(UINT64_MAX);
    const std::vector<RowRules> rules = {drawSmallFilter(random), drawSmallFilter(random)};
    for (uint32_t table = 0; table < kTables.size(); table++) {
      for (ParameterStore* const store : {primary.get(), standby.get()})
        store->setRowRules(table, rules[table]);
    }
    PSD_REQUIRE_OK(update(shard, {}));
    repeatNewest(replayer, *log);
    for (int i = 0; i < 50; i++) {
      const Push push = drawPush(random, ids);
      REQUIRE(update(shard, push).ok() == update(other, push).ok());
      REQUIRE(testing::contentOf(other) == testing::contentOf(shard));
    }
  }
  CHECK(evicted > 10'000);
  CHECK(notAdmitted > 10'000);
  CHECK(changes > 500);
}

TEST_CASE("rules may change between two updates") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  Push push;
  push.add(1, {1, 2, 3, 4}, std::vector<float>(8, 1.f));
  store->setRowRules(1, {.admit = {.pushes = 2}});
  PSD_REQUIRE_OK(update(shard, push));
  CHECK(shard.size().rows == 0);
  CHECK(shard.tables()[1].counts->notAdmitted == 4);
  store->setRowRules(1, {.rowsMax = 2, .evict = {By::leastRecent}});
  CHECK_FALSE(update(shard, push).ok());
  store->setRowRules(1, {});
  PSD_REQUIRE_OK(update(shard, push));
  CHECK(shard.size().rows == 4);
  // Existing rows stay until an update needs space.
  store->setRowRules(1, {.rowsMax = 2, .evict = {By::leastRecent}});
  PSD_REQUIRE_OK(update(shard, push));
  CHECK(shard.size().rows == 4);
  Push other;
  other.add(1, {9}, {1, 1});
  PSD_REQUIRE_OK(update(shard, other));
  CHECK(shard.size().rows == 2);
  CHECK(shard.tables()[1].counts->evicted == 3);
  CHECK(contentOf(shard, 1).contains(9));
}

TEST_CASE("limits.table_bytes frees space like max_rows if a table evicts") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  store->setRowRules(0, {.evict = {By::age, 1'000'000}});
  uint64_t id = 0;
  const auto next = [&] {
    Push push;
    push.add(0, {id, id + 1}, std::vector<float>(8, 0.f));
    id += 2;
    return update(shard, push);
  };
  for (int i = 0; i < 50; i++) PSD_REQUIRE_OK(next());
  const RowTableSize full = shard.size();
  store->setTableBytesMax(full.bytes + full.indexBytes + (1 << 20));  // the index is copied to evict
  for (int i = 0; i < 40'000 && shard.tables()[0].counts->evicted == 0; i++) PSD_REQUIRE_OK(next());
  CHECK(shard.tables()[0].counts->evicted > 0);
  for (int i = 0; i < 50; i++) PSD_REQUIRE_OK(next());
  store->setRowRules(0, {});
  store->setTableBytesMax(1000);
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); i++)
    status = next();  // until the evicted rows' memory is reused
  CHECK(status.error().code == ErrorCode::overloaded);
}

TEST_CASE("at limits.table_bytes new rows replace others as long as they arrive") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  store->setRowRules(0, {.evict = {GENERATE(By::leastRecent, By::age), 1'000'000}});
  store->setTableBytesMax(4 << 20);
  constexpr uint64_t kStep = 1'000;
  uint64_t most = 0;
  for (uint64_t id = 0; id < 300 * kStep; id += kStep) {
    std::vector<uint64_t> ids(kStep);
    std::iota(ids.begin(), ids.end(), id);
    Push push;
    push.add(0, ids, std::vector<float>(kStep * 4, 1.f));
    PSD_REQUIRE_OK(update(shard, push));
    most = std::max(most, shard.size().rows);
  }
  const RowTableSize size = shard.size();
  CHECK(shard.tables()[0].counts->evicted > 100 * kStep);
  CHECK(size.rows > most / 2);
  CHECK(size.bytes + size.indexBytes < (4 << 20) * 3 / 2);  // the index does not shrink
}

TEST_CASE("a push that is rejected for one table takes no rows of another, however often it is repeated") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  store->setRowRules(0, {.evict = {By::leastRecent}});
  Push rows;
  std::vector<uint64_t> ids(100);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  rows.add(0, ids, std::vector<float>(400, 1.f));
  rows.add(1, {0}, {1, 1});
  PSD_REQUIRE_OK(update(shard, rows));
  SECTION("for limits.table_bytes") {}
  SECTION("for a filter") { store->setRowRules(1, {.admit = {.pushes = 3, .counters = 64 << 12}}); }
  SECTION("for max_rows") { store->setRowRules(1, {.rowsMax = 1}); }
  store->setTableBytesMax(1);
  for (uint64_t id = 1000; id < 1050; id++) {
    Push push;
    push.add(0, {id}, std::vector<float>(4, 1.f));
    push.add(1, {id}, {1, 1});
    REQUIRE(update(shard, push).error().code == ErrorCode::overloaded);
  }
  CHECK(shard.tables()[0].counts->evicted == 0);
  CHECK(contentOf(shard, 0).size() == 100);
  Push alone;  // if the other table requests nothing, one replaces another
  alone.add(0, {1000}, std::vector<float>(4, 1.f));
  PSD_REQUIRE_OK(update(shard, alone));
  CHECK(contentOf(shard, 0).contains(1000));
}

TEST_CASE("a large table is scanned in parts, and evicts some of its oldest thousands at a time") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  constexpr uint64_t kRows = 20'000, kStep = 500;
  store->setRowRules(1, {.rowsMax = kRows, .evict = {By::leastRecent}});
  for (uint64_t id = 0; id < 2 * kRows; id += kStep) {
    std::vector<uint64_t> ids(kStep);
    std::iota(ids.begin(), ids.end(), id);
    Push push;
    push.add(1, ids, std::vector<float>(kStep * 2, 1.f));
    PSD_REQUIRE_OK(update(shard, push));
    REQUIRE(shard.size().rows <= kRows);
  }
  CHECK(shard.size().rows > kRows - 1200);
  // About the oldest half is gone.
  uint64_t old = 0;
  for (const auto& [id, row] : contentOf(shard, 1)) old += id < kRows;
  CHECK(old < kRows / 5);
}

TEST_CASE("readers see whole rows of their ids, or initial values, while rules evict rows") {
  const auto store = makeStore();
  RowShard& shard = store->rowShard(0);
  store->setRowRules(0, {.rowsMax = 3'000, .evict = {By::leastRecent}});
  store->setRowRules(1, {.evict = {By::age, 4}});
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0}, known{0};
  std::vector<std::thread> readers;
  for (uint64_t seed = 0; seed < 2; seed++) {
    readers.emplace_back([&, seed] {
      Random random(seed);
      std::vector<uint64_t> ids(100);
      std::vector<float> out(ids.size() * 4), own(4);
      const RowRun run{0, 100};
      do {
        for (uint64_t& id : ids) id = random.below(9'000);
        known += shard.gather({{&run, 1}, ids}, out);
        for (size_t i = 0; i < ids.size(); i++) {
          kTables[0].initial.fill(ids[i], own);
          if (!std::equal(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(i * 4))) ++wrong;
        }
      } while (!done);
    });
  }
  Random random(9);
  for (int i = 0; i < 150; i++) {
    Push push;
    std::vector<uint64_t> ids(400);
    for (uint64_t& id : ids) id = random.below(9'000);
    push.add(0, ids, std::vector<float>(ids.size() * 4, 0.f));  // rows keep their initial values
    push.add(1, ids, std::vector<float>(ids.size() * 2, 1.f));
    PSD_REQUIRE_OK(update(shard, push));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(known > 0);
  CHECK(shard.tables()[0].counts->evicted > 1'000);
  CHECK(shard.tables()[1].counts->evicted > 1'000);
}

TEST_CASE("memory of evicted rows is reused first, and released when a chunk is empty") {
  StoreGroups groups{{}, {{Sgd{}, 1.0, {}}}, {0}};
  auto made = ParameterStore::create({"m", {}, {{"wide", 4096, {}}}}, 1, {makeCpuBackend()}, groups);
  PSD_REQUIRE_OK(made);
  RowShard& shard = (*made)->rowShard(0);
  const uint64_t chunk = shard.table(0)->layout().rowsPerChunk();
  (*made)->setRowRules(0, {.evict = {By::age, 2}});
  const auto push = [&](uint64_t first, uint64_t count) {
    Push push;
    std::vector<uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), first);
    push.runs = {{0, static_cast<uint32_t>(count)}};
    push.ids = ids;
    push.gradients.resize(count * 4096);
    PSD_REQUIRE_OK(update(shard, push));
  };
  push(0, chunk);
  push(chunk, chunk / 2);
  const uint64_t most = shard.size().bytes;
  push(chunk, chunk / 2);
  push(chunk, chunk / 2);  // the first chunk's rows are due
  CHECK(shard.size().rows == chunk / 2);
  CHECK(shard.size().bytes < most / 2);
  const uint64_t left = shard.size().bytes;
  push(chunk, chunk / 2 + 10);
  CHECK(shard.size().bytes <= left + 10 * (4096 * 4 + 8));
}

}  // namespace
}  // namespace psd::row_rules_test
