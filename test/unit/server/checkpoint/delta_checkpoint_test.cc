// Checkpoints that hold only the rows that changed since the previous one, and the models assembled from
// them.

#include <atomic>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "common/os/text_file.h"
#include "server/checkpoint/table_export.h"
#include "test/support/random.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::delta_checkpoint_test {
namespace {

using namespace testing;
using By = EvictRule::By;

const ModelSpec kTables{
    "tables", {{"bias", DType::f32, {3}}}, {{"a", 4, {RowInitial::Kind::uniform, 1.f, 5}}, {"b", 2, {}}}};

std::shared_ptr<ParameterStore> makeTables(uint32_t rowShards) {
  StoreGroups groups{{0}, {optimizerOf(R"({"type": "adagrad", "lr": 0.5})")}, {0, 0}, rowShards};
  auto store = ParameterStore::create(kTables, 1, {makeCpuBackend()}, groups);
  PSD_REQUIRE_OK(store);
  return *std::move(store);
}

/// A row with its meta word and all its planes.
struct Row {
  uint64_t meta = 0;
  std::vector<float> values;
  bool operator==(const Row&) const = default;
};
using Rows = std::map<std::pair<uint32_t, uint64_t>, Row>;  // by table and id

Rows rowsOf(ParameterStore& store) {
  Rows all;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    for (const RowShard::Table& table : store.rowShard(i).tables()) {
      RowCursor cursor;
      std::vector<RowEntry> entries;
      for (table.rows->next(cursor, entries); !entries.empty(); table.rows->next(cursor, entries)) {
        for (const RowEntry& entry : entries) {
          Row& row = all[{table.index, entry.id}];
          row.meta = table.rows->meta(entry.row).word;
          for (uint32_t plane = 0; plane < table.rows->layout().planeCount(); plane++) {
            std::vector<float> values(table.rows->layout().width(plane));
            table.rows->readPlane(plane, std::vector{entry.row}, values);
            row.values.insert(row.values.end(), values.begin(), values.end());
          }
        }
      }
    }
  }
  return all;
}

/// In words, the rows in which two stores differ.
std::string differences(ParameterStore& one, ParameterStore& other) {
  const Rows rows = rowsOf(one), others = rowsOf(other);
  std::string text;
  const auto note = [&](const Rows::value_type& row, const char* what) {
    text += fmt::format("row {} of table {}, version {}: {}; ", row.first.second, row.first.first,
                        row.second.meta >> RowMeta::kCountBits, what);
  };
  for (const auto& row : rows) {
    const auto found = others.find(row.first);
    if (found == others.end()) note(row, "missing");
    if (found != others.end() && found->second != row.second) note(*found, "another one");
  }
  for (const auto& row : others) {
    if (!rows.contains(row.first)) note(row, "too many");
  }
  return text;
}

/// One update of each row shard with gradients of some rows of both tables, under the lock or concurrently
/// with others.
void step(ParameterStore& store, Random& random, uint64_t ids, size_t count, bool live = false) {
  TestLoop loop;
  std::vector<uint64_t> drawn(count);
  for (uint64_t& id : drawn) id = random.below(ids) * 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    RowShard& shard = store.rowShard(i);
    std::vector<uint64_t> own = drawn;
    std::erase_if(own, [&](uint64_t id) { return !shard.hashes().contains(rowHash(id)); });
    const auto size = static_cast<uint32_t>(own.size());
    std::vector<RowRun> runs;
    if (size > 0) runs = {{0, size}, {1, size}};
    own.insert(own.end(), own.begin(), own.end());
    std::vector<float> gradients(size * 6);
    for (float& value : gradients) value = static_cast<float>(random.between(1, 9)) - 5;
    const StagedRows part{{runs, own}, gradients, nullptr};
    if (live && !shard.lacks(part.rows)) {
      shard.applyRacing(part.rows, part.gradients, {}, shard.scalars(shard.beginUpdate()));
      shard.endUpdate();
      continue;
    }
    const ShardLock::Guard guard = loop.wait(shard.lock().acquire());
    const UpdateScalars scalars =
        live ? shard.scalars(shard.beginUpdate()) : shard.scalars(shard.beginExclusiveUpdate());
    const Version version{live ? shard.version().value : scalars.number};
    static_cast<void>(shard.turnover().evictDue(scalars.number, part.rows));
    auto prepared = shard.turnover().prepare(part, version);
    if (!prepared.ok()) std::abort();  // several threads may be here, and Catch2's macros are for one
    if (!shard.update(*prepared, {}, scalars, version).ok()) std::abort();
    shard.endUpdate();
  }
}

void setRules(ParameterStore& store) {
  store.setRowRules(
      0, {.rowsMax = 300, .evict = {By::leastRecent}, .admit = {.pushes = 2, .counters = 1 << 12}});
  store.setRowRules(1, {.evict = {By::age, 6}});
}

DurabilityConfig configOf(uint64_t fullEvery, uint64_t keep = 2) {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;
  config.path = "/data";
  config.everySeconds = 0;
  config.keep = keep;
  config.fullEvery = fullEvery;
  return config;
}

CheckpointSource sourceOf(const std::shared_ptr<ParameterStore>& store, bool live = false) {
  CheckpointSource source;
  source.store = store;
  source.groups = [live] {
    return std::vector<CheckpointSource::Group>{{live ? "hogwild" : "locked", live}};
  };
  return source;
}

Checkpoint open(Env& env, uint64_t number) {
  auto opened = openCheckpoint(env, checkpointPath("/data", number));
  PSD_REQUIRE_OK(opened);
  return *std::move(opened);
}

/// The rows of a checkpoint, restored into `rowShards` row shards.
std::shared_ptr<ParameterStore> restored(Env& env, const Checkpoint& checkpoint, uint32_t rowShards) {
  auto store = makeTables(rowShards);
  PSD_REQUIRE_OK(restoreStore(env, checkpoint, *store));
  return store;
}

TEST_CASE("a chain of checkpoints restores the rows exactly, into any number of row shards") {
  const uint64_t seed = GENERATE(range(0, 6));
  Random random(seed);
  MemoryEnv env;
  const auto rowShards = static_cast<uint32_t>(random.between(1, 4));
  const auto store = makeTables(rowShards);
  setRules(*store);
  const uint64_t fullEvery = random.between(2, 6);
  Checkpointer checkpointer(env, configOf(fullEvery), sourceOf(store), 1);
  for (uint64_t number = 1; number <= 10; number++) {
    INFO("seed " << seed << ", checkpoint " << number << ", " << rowShards << " row shards");
    for (uint64_t steps = random.below(5); steps > 0; steps--)
      step(*store, random, 700, random.between(1, 300));
    PSD_REQUIRE_OK(checkpointer.takeNow());
    const Checkpoint checkpoint = open(env, number);
    CHECK(checkpoint.bases.size() == (number - 1) % fullEvery);
    const Rows rows = rowsOf(*store);
    for (const uint32_t other : {rowShards, 1u, 2u, 3u}) {
      const auto again = restored(env, checkpoint, other);
      REQUIRE(rowsOf(*again) == rows);
      for (size_t i = 0; other == rowShards && i < rowShards; i++) {
        const auto* const filter = again->rowShard(i).tables()[0].gate->filter();
        const auto* const before = store->rowShard(i).tables()[0].gate->filter();
        const std::vector<uint64_t> none;
        REQUIRE((filter ? filter->saved() : none) == (before ? before->saved() : none));
      }
    }
  }
  CHECK(store->rowShard(0).tables()[0].counts->evicted > 0);
  CHECK(store->rowShard(0).tables()[1].counts->evicted > 0);
}

TEST_CASE("a chain is exact though updates continue while each of its checkpoints is taken") {
  const bool live = GENERATE(false, true);
  INFO("live " << live);
  MemoryEnv env;
  const auto store = makeTables(2);
  setRules(*store);
  Checkpointer checkpointer(env, configOf(20), sourceOf(store, live), 1);
  { const testing::TestLoop first; }  // fills kj's static tables, whose guard ThreadSanitizer does not see
  std::atomic<bool> done{false};
  std::vector<std::thread> pushing;
  for (uint64_t seed = 0; seed < 2; seed++) {
    pushing.emplace_back([&, seed] {
      Random random(seed);
      do {
        step(*store, random, 5'000, 60, live);
      } while (!done);
    });
  }
  for (int i = 0; i < 12; i++) PSD_REQUIRE_OK(checkpointer.takeNow());
  done = true;
  for (std::thread& thread : pushing) thread.join();
  PSD_REQUIRE_OK(checkpointer.takeNow());
  const Checkpoint checkpoint = open(env, 13);
  CHECK(checkpoint.bases.size() == 12);
  CHECK(differences(*store, *restored(env, checkpoint, 2)) == "");
}

TEST_CASE("a checkpoint of few changed rows is small, and of none empty") {
  MemoryEnv env;
  const auto store = makeTables(2);
  Random random(3);
  for (int i = 0; i < 40; i++) step(*store, random, 20'000, 1'000);
  Checkpointer checkpointer(env, configOf(9), sourceOf(store), 1);
  const auto bytesOf = [&](uint64_t number) {
    uint64_t bytes = 0, rows = 0;
    for (const ManifestRowShard& shard : open(env, number).manifest.rowShards) {
      for (const ManifestFile& file : shard.files) bytes += file.bytes;
      rows += shard.rows;
    }
    return std::pair(bytes, rows);
  };
  PSD_REQUIRE_OK(checkpointer.takeNow());
  const auto [full, all] = bytesOf(1);
  CHECK(all == rowsOf(*store).size());
  step(*store, random, 20'000, 160);  // one per cent of the rows
  PSD_REQUIRE_OK(checkpointer.takeNow());
  CHECK(bytesOf(2).first < full / 20);
  CHECK(bytesOf(2).second <= 320);
  PSD_REQUIRE_OK(checkpointer.takeNow());
  CHECK(bytesOf(3) == std::pair(uint64_t{0}, uint64_t{0}));
  CHECK(rowsOf(*restored(env, open(env, 3), 2)) == rowsOf(*store));
}

TEST_CASE("bases are kept as long as a checkpoint depends on them") {
  MemoryEnv env;
  const auto store = makeTables(2);
  Random random(4);
  Checkpointer checkpointer(env, configOf(3, 1), sourceOf(store), 1);
  const std::vector<std::vector<uint64_t>> expected = {{1}, {1, 2}, {1, 2, 3}, {4}, {4, 5}, {4, 5, 6}, {7}};
  for (const auto& left : expected) {
    step(*store, random, 500, 50);
    PSD_REQUIRE_OK(checkpointer.takeNow());
    const auto there = listCheckpoints(env, "/data", false);
    PSD_REQUIRE_OK(there);
    CHECK(*there == left);
  }
}

/// The text of the Error with which a checkpoint is rejected.
std::string refusal(Env& env, uint64_t number) {
  const auto opened = openCheckpoint(env, checkpointPath("/data", number));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.message().find('\n') == std::string::npos);
  return opened.message();
}

TEST_CASE("a missing, damaged or different base is reported in one line, and an older chain is used") {
  MemoryEnv env;
  const auto store = makeTables(1);
  Random random(5);
  {
    Checkpointer checkpointer(env, configOf(2, 3), sourceOf(store), 1);
    for (int i = 0; i < 4; i++) {
      step(*store, random, 500, 50);
      PSD_REQUIRE_OK(checkpointer.takeNow());
    }
  }
  const std::string base = checkpointPath("/data", 3), rows = base + "/rows-00001-000000.safetensors";
  const std::string manifest = base + "/manifest.json";
  const auto textOf = [&](const std::string& path) {
    auto text = readText(env, path, 1 << 30, "a file");
    PSD_REQUIRE_OK(text);
    return *std::move(text);
  };
  const std::string whole = textOf(rows), named = textOf(manifest);
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 1;
  env.put(rows, damaged);
  CHECK(refusal(env, 4).find(
            "'/data/checkpoint-0000000004' is based on '/data/checkpoint-0000000003', which cannot "
            "be used: '" +
            rows + "' is damaged: its checksum is") == 0);
  env.put(rows, whole);
  env.put(manifest, textOf(checkpointPath("/data", 1) + "/manifest.json"));
  CHECK(refusal(env, 4).find("is not the one that was recorded") != std::string::npos);
  PSD_REQUIRE_OK(env.remove(manifest));
  CHECK(refusal(env, 4) ==
        "'/data/checkpoint-0000000004' is based on '/data/checkpoint-0000000003', which does not exist");
  const auto newest = newestCheckpoint(env, "/data");
  PSD_REQUIRE_OK(newest);
  REQUIRE(newest->checkpoint);
  CHECK(newest->checkpoint->manifest.number == 2);
  CHECK(newest->damaged.size() == 1);
  env.put(manifest, named);
  CHECK(rowsOf(*restored(env, open(env, 4), 1)) == rowsOf(*store));
}

TEST_CASE("a checkpoint whose base was removed meanwhile holds all rows, and so does one after a failure") {
  MemoryEnv env;
  const auto store = makeTables(1);
  Random random(6);
  Checkpointer checkpointer(env, configOf(9), sourceOf(store), 1);
  const auto take = [&] {
    step(*store, random, 500, 50);
    return checkpointer.takeNow();
  };
  PSD_REQUIRE_OK(take());
  PSD_REQUIRE_OK(take());
  PSD_REQUIRE_OK(env.remove(checkpointPath("/data", 2) + "/manifest.json"));
  PSD_REQUIRE_OK(take());
  CHECK(open(env, 3).bases.empty());
  env.fail({}, "the disk is full");
  CHECK_FALSE(take().ok());
  env.heal();
  PSD_REQUIRE_OK(take());
  CHECK(open(env, 5).bases.empty());
  PSD_REQUIRE_OK(take());
  CHECK(open(env, 6).bases.size() == 1);
  CHECK(rowsOf(*restored(env, open(env, 6), 1)) == rowsOf(*store));
}

TEST_CASE("more evicted rows than are remembered make a row shard's next checkpoint whole") {
  MemoryEnv env;
  const auto store = makeTables(1);
  RowShard& shard = store->rowShard(0);
  store->setRowRules(1, {.evict = {By::norm, 1, 1e6}});  // every row, with the next update
  Checkpointer checkpointer(env, configOf(9), sourceOf(store), 1);
  const auto push = [&](uint64_t first, uint32_t count) {
    const RowRun run{1, count};
    std::vector<uint64_t> ids(count);
    for (uint32_t i = 0; i < count; i++) ids[i] = first + i;
    const std::vector<float> gradients(uint64_t{count} * 2, 1.f);
    shard.turnover().evictDue(shard.version().value + 1, {});
    PSD_REQUIRE_OK(shard.update({{{&run, 1}, ids}, gradients, nullptr}, {},
                                shard.scalars(shard.beginExclusiveUpdate())));
    shard.endUpdate();
  };
  push(0, 10);
  PSD_REQUIRE_OK(checkpointer.takeNow());
  constexpr uint32_t kAtOnce = 60'000;
  for (uint64_t i = 0; i <= RowTurnover::kEvictedMax / kAtOnce + 1; i++) push(i * kAtOnce, kAtOnce);
  PSD_REQUIRE_OK(checkpointer.takeNow());
  CHECK(open(env, 2).bases.empty());
  CHECK(rowsOf(*restored(env, open(env, 2), 1)) == rowsOf(*store));
}

TEST_CASE("a table is exported from a chain like from one checkpoint") {
  MemoryEnv env;
  const auto store = makeTables(3);
  setRules(*store);
  Random random(7);
  Checkpointer checkpointer(env, configOf(9), sourceOf(store), 1);
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < 3; k++) step(*store, random, 800, 200);
    PSD_REQUIRE_OK(checkpointer.takeNow());
  }
  DurabilityConfig other = configOf(1);
  other.path = "/full";
  PSD_REQUIRE_OK(Checkpointer(env, other, sourceOf(store), 1).takeNow());
  const auto full = openCheckpoint(env, checkpointPath("/full", 1));
  PSD_REQUIRE_OK(full);
  for (const std::string table : {"a", "b"}) {
    PSD_REQUIRE_OK(exportTable(env, open(env, 4), table, TableFormat::safetensors, "/chain.safetensors"));
    PSD_REQUIRE_OK(exportTable(env, *full, table, TableFormat::safetensors, "/full.safetensors"));
    CHECK(readText(env, "/chain.safetensors", 1 << 30, "a file").value() ==
          readText(env, "/full.safetensors", 1 << 30, "a file").value());
  }
}

TEST_CASE("after a crash at any operation the newest finished checkpoint is whole, with its chain") {
  const Survival survival = GENERATE(Survival::syncedOnly, Survival::namesWithHalfData);
  bool done = false;
  for (uint64_t point = 0; !done; point += 3) {
    MemoryEnv env;
    env.crashAt(point, 7);
    const auto store = makeTables(1);
    Random random(8);
    std::map<uint64_t, Rows> saved;
    {
      Checkpointer checkpointer(env, configOf(3, 1), sourceOf(store), 1);
      for (uint64_t number = 1; number <= 7; number++) {
        step(*store, random, 50, 10);
        const bool taken = checkpointer.takeNow().ok();
        if (taken && !env.crashed()) saved[number] = rowsOf(*store);
      }
    }
    done = !env.crashed();
    env.restart(survival);
    INFO("operation " << point);
    const auto newest = newestCheckpoint(env, "/data");
    PSD_REQUIRE_OK(newest);
    if (saved.empty()) continue;
    REQUIRE(newest->checkpoint);
    REQUIRE(newest->checkpoint->manifest.number >= saved.rbegin()->first);
    if (newest->checkpoint->manifest.number == saved.rbegin()->first) {
      REQUIRE(rowsOf(*restored(env, *newest->checkpoint, 1)) == saved.rbegin()->second);
    }
  }
}

}  // namespace
}  // namespace psd::delta_checkpoint_test
