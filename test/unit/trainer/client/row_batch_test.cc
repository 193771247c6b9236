#include <algorithm>
#include <map>
#include <vector>

#include "common/plan/model_partitions.h"
#include "common/plan/shard_plan.h"
#include "common/types/row_hash.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/row_ids.h"
#include "trainer/client/transport/row_slices.h"

namespace psd::client_row_batch_test {
namespace {

using testing::Random;

const std::vector<TableSpec> kTables = {{"a", 16, {}}, {"b", 3, {}}, {"c", 1, {}}};

std::shared_ptr<RingBlocks> ringOf(uint64_t begin, uint64_t bytes) {
  auto memory = SharedMemory::create("test", begin + bytes, SharedAccess::readWrite);
  PSD_REQUIRE_OK(memory);
  return std::make_shared<RingBlocks>(*memory, begin, bytes);
}

std::vector<RowShardTerms> shardsOf(uint32_t count, uint32_t firstId = 0) {
  std::vector<RowShardTerms> shards;
  for (const ShardRange& range : planRowShards(count)) {
    shards.push_back({ShardId{firstId + range.id.value},
                      range.begin << 32,
                      ((range.begin + range.count) << 32) - 1,
                      {0, 1, 2}});
  }
  return shards;
}

/// By shard, table and id, how often a row is in the slices.
std::map<std::tuple<uint32_t, uint32_t, uint64_t>, int> rowsOf(const std::vector<RowSlice>& slices,
                                                               const RowBatch& batch) {
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, int> rows;
  for (const RowSlice& slice : slices) {
    for (const RowSlice::Piece& piece : slice.pieces) {
      for (const uint64_t id : batch.ids(piece.table).subspan(piece.begin, piece.count)) {
        rows[{slice.shard.value, piece.table, id}]++;
      }
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("blocks of a ring do not overlap, start at multiples of 64 and are reused") {
  const auto ring = ringOf(128, 1024);
  std::vector<std::shared_ptr<float>> blocks;
  for (int i = 0; i < 4; i++) blocks.push_back(ring->take(200));  // each takes 256
  CHECK(ring->take(1) == nullptr);
  for (uint64_t i = 0; i < 4; i++) CHECK(ring->placeOf({blocks[i].get(), 50}) == 128 + 256 * i);
  float* const second = blocks[1].get();
  blocks[1] = nullptr;
  CHECK(ring->take(257) == nullptr);
  blocks[1] = ring->take(256);
  CHECK(blocks[1].get() == second);
  blocks.clear();
  CHECK(ring->take(1025) == nullptr);
  CHECK(ring->take(1024) != nullptr);
}

TEST_CASE("memory in a ring is distinguished from other memory") {
  const auto ring = ringOf(128, 1024);
  const auto block = ring->take(1024);
  CHECK(ring->placeOf({block.get(), 256}) == 128);
  CHECK(ring->placeOf({block.get() + 16, 240}) == 192);
  CHECK_FALSE(ring->placeOf({block.get() + 1, 16}));    // not a multiple of 64
  CHECK_FALSE(ring->placeOf({block.get(), 257}));       // beyond its end
  CHECK_FALSE(ring->placeOf({block.get() - 16, 16}));   // before its start
  CHECK_FALSE(ring->placeOf({block.get() + 256, 16}));  // behind it
  const std::vector<float> elsewhere(16);
  CHECK_FALSE(ring->placeOf(elsewhere));
  CHECK_FALSE(ring->placeOf({}));
}

TEST_CASE("a batch is in the ring while there is one with space, and its values leave one that is gone") {
  const auto memory = std::make_shared<RowMemory>();
  RowBatch batch(kTables, 1, memory);
  const std::vector<uint64_t> ids = {1, 2, 3, 4};
  const RowBatch::Feature features[] = {{0, ids}, {2, ids}};
  batch.make(features);
  const auto first = ringOf(0, 1 << 16);
  memory->use(first);
  CHECK_FALSE(first->placeOf(batch.rows(0)));
  batch.make(features);
  CHECK(first->placeOf(batch.rows(0)));
  CHECK(first->placeOf(batch.gradients(0)));
  std::ranges::fill(batch.gradients(2), 3.f);
  first->close();
  batch.dropLostMemory();
  CHECK_FALSE(first->placeOf(batch.rows(0)));
  CHECK(std::ranges::count(batch.gradients(2), 3.f) == 4);  // these stay, with their values
  const auto second = ringOf(0, 1 << 10);
  memory->use(second);
  batch.make(features);
  CHECK(second->placeOf(batch.rows(0)));
  CHECK_FALSE(first->placeOf(batch.gradients(0)));
  CHECK(std::ranges::count(batch.gradients(2), 0.f) == 4);
  std::vector<uint64_t> different(1000);
  for (size_t i = 0; i < different.size(); i++) different[i] = i;
  const RowBatch::Feature large[] = {{0, different}};
  batch.make(large);
  CHECK_FALSE(second->placeOf(batch.rows(0)));  // no space
  CHECK(std::ranges::count(batch.gradients(0), 0.f) == 16'000);
}

TEST_CASE("slices have every row once, in its shard, whether or not the batch is in the shards' order") {
  Random random(5);
  RowBatch batch(kTables, GENERATE(1u, 3u, 4u));
  for (const uint32_t daemonShards : {1u, 3u, 7u}) {
    const std::vector<RowShardTerms> shards = shardsOf(daemonShards, 2);
    const std::vector<uint64_t> a = testing::mixedIds(500, random), b = testing::mixedIds(300, random);
    const RowBatch::Feature features[] = {{0, a}, {1, b}, {0, b}};
    batch.make(features);
    const std::vector<RowSlice> slices = cutRows(batch, shards, 640);
    const auto rows = rowsOf(slices, batch);
    CHECK(rows.size() == batch.rowCount());
    for (const auto& [row, times] : rows) {
      const auto& [shard, table, id] = row;
      CHECK(times == 1);
      const RowShardTerms& of = shards[shard - 2];
      CHECK((rowHash(id) >= of.hashFirst && rowHash(id) <= of.hashLast));
    }
    std::map<uint32_t, uint64_t> firsts;
    for (const RowSlice& slice : slices) {
      CHECK(slice.first == firsts[slice.shard.value]);
      firsts[slice.shard.value] += slice.count;
      CHECK(slice.values + slice.count * kRowIdFloats + slice.pieces.size() * kRowRunFloats <= 640);
    }
    for (const RowSlice& slice : slices) CHECK(slice.total == firsts[slice.shard.value]);
    // Each id maps to its row.
    for (size_t i = 0; i < b.size(); i++) {
      CHECK(batch.ids(0)[static_cast<size_t>(batch.places(2)[i])] == b[i]);
      CHECK(batch.ids(1)[static_cast<size_t>(batch.places(1)[i])] == b[i]);
    }
  }
}

TEST_CASE("rows of a slice are contiguous if a batch has them in the order of its shards") {
  Random random(6);
  const std::vector<uint64_t> ids = testing::mixedIds(400, random);
  const auto neighbouring = [&](uint32_t batchShards, const std::vector<RowBatch::Feature>& features) {
    RowBatch batch(kTables, batchShards);
    batch.make(features);
    const auto slices = cutRows(batch, shardsOf(3), 640);
    return std::ranges::count_if(slices, [&](const RowSlice& slice) {
             const auto values = neighbours(slice, batch, [&](uint32_t table) { return batch.rows(table); });
             if (!values.empty()) CHECK(values.size() == slice.values);
             return values.size() == slice.values;
           }) == std::ssize(slices);
  };
  CHECK(neighbouring(3, {{0, ids}}));
  CHECK_FALSE(neighbouring(1, {{0, ids}}));
  CHECK_FALSE(neighbouring(3, {{0, ids}, {1, ids}}));
}

TEST_CASE("each of several daemons gets its rows, in place in the common batch") {
  constexpr uint32_t kDaemons = 3, kShards = 4;
  RowBatch batch(kTables, kShards, nullptr, kDaemons);
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 500; i++) ids.push_back(i * i * 7919 % 1009);
  for (int again = 0; again < 2; again++) {
    ids.resize(ids.size() / 2);
    const std::vector<RowBatch::Feature> features = {
        {0, ids}, {1, std::span(ids).first(20)}, {0, std::span(ids).last(9)}};
    batch.make(features);
    for (size_t i = 0; i < ids.size(); i++)
      CHECK(batch.ids(0)[static_cast<size_t>(batch.places(0)[i])] == ids[i]);
    std::map<uint64_t, uint64_t> rows;
    for (uint32_t daemon = 0; daemon < kDaemons; daemon++) {
      RowBatch part = batch.ofDaemon(daemon);
      CHECK(part.shards() == kShards);
      CHECK(part.daemons() == 1);
      for (const auto& [row, times] : rowsOf(cutRows(part, shardsOf(kShards), 1 << 20), part)) {
        const auto [shard, table, id] = row;
        CHECK(times == 1);
        CHECK(partitionOf(rowHash(id), kDaemons) == daemon);
        rows[table]++;
      }
      for (uint32_t table = 0; table < kTables.size(); table++) {
        CHECK(part.rows(table).size() == part.rowCount(table) * kTables[table].dim);
        for (size_t i = 0; i < part.rowCount(table); i++) {
          const auto all = batch.ids(table);
          const size_t at = static_cast<size_t>(std::ranges::find(all, part.ids(table)[i]) - all.begin());
          CHECK(&part.rows(table)[i * kTables[table].dim] == &batch.rows(table)[at * kTables[table].dim]);
          CHECK(&part.gradients(table)[i * kTables[table].dim] ==
                &batch.gradients(table)[at * kTables[table].dim]);
        }
      }
    }
    for (uint32_t table = 0; table < kTables.size(); table++) CHECK(rows[table] == batch.rowCount(table));
  }
}

}  // namespace psd::client_row_batch_test
