#include "server/store/rows/row_index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "test/support/catch.h"
#include "test/support/row_ids.h"

namespace psd {
namespace {

using testing::idOfHash;
using testing::mixedId;
using testing::Random;

/// All entries, iterated from the start.
std::vector<RowEntry> walk(const RowIndex& index) {
  std::vector<RowEntry> all, some;
  RowCursor cursor;
  for (index.next(cursor, some); !some.empty(); index.next(cursor, some)) {
    all.insert(all.end(), some.begin(), some.end());
  }
  CHECK(cursor.ended);
  return all;
}

/// Fails unless the index has the entries of `expected`, in the order of their hashes.
void requireEqual(const RowIndex& index, const std::map<uint64_t, uint32_t>& expected) {
  std::vector<RowEntry> entries;
  for (const auto& [id, row] : expected) entries.push_back({rowHash(id), id, row});
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.hash < b.hash; });
  REQUIRE(index.entries() == expected.size());
  REQUIRE(walk(index) == entries);
}

TEST_CASE("an empty index knows no id") {
  const RowIndex index({}, std::make_shared<Epochs>());
  CHECK(index.find(0) == kNoRow);
  CHECK(index.find(UINT64_MAX) == kNoRow);
  CHECK(index.findBatch({}, {}) == 0);
  CHECK(walk(index).empty());
  RowIndex other({}, std::make_shared<Epochs>());
  std::vector<uint32_t> rows;
  CHECK(other.erase(std::vector<uint64_t>{1, 2}, rows));
  CHECK(rows.empty());
}

TEST_CASE("an index behaves like a map under any insertions and removals") {
  for (uint64_t seed = 1; seed <= 4; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    RowIndex index({}, std::make_shared<Epochs>());
    std::map<uint64_t, uint32_t> expected;
    std::vector<uint64_t> ids;
    for (int round = 0; round < 6; round++) {
      for (int i = 0; i < 15'000; i++) {
        const uint64_t id = mixedId(random);
        const auto row = static_cast<uint32_t>(random.below(kNoRow));
        const uint32_t found = index.insert(id, row);
        REQUIRE(found == expected.try_emplace(id, row).first->second);
        ids.push_back(id);
      }
      requireEqual(index, expected);
      std::vector<uint64_t> erased;
      for (int i = 0; i < 6'000; i++)
        erased.push_back(random.oneIn(5) ? mixedId(random) : ids[random.below(ids.size())]);
      std::vector<uint32_t> rows, gone;
      REQUIRE(index.erase(erased, rows));
      for (const uint64_t id : erased) {
        const auto node = expected.extract(id);
        if (!node.empty()) gone.push_back(node.mapped());
        REQUIRE(index.find(id) == kNoRow);
      }
      std::sort(rows.begin(), rows.end());
      std::sort(gone.begin(), gone.end());
      REQUIRE(rows == gone);
      requireEqual(index, expected);
    }
    CHECK(index.splits() > 5);
    // In batches of any length, with unknown ids among them.
    for (const size_t count : {0, 1, 31, 32, 33, 64, 65, 1000}) {
      std::vector<uint64_t> batch;
      for (size_t i = 0; i < count; i++)
        batch.push_back(random.oneIn(2) ? mixedId(random) : ids[random.below(ids.size())]);
      std::vector<uint32_t> rows(count);
      uint64_t known = 0;
      const uint64_t said = index.findBatch(batch, rows);
      for (size_t i = 0; i < count; i++) {
        const auto found = expected.find(batch[i]);
        CHECK(rows[i] == (found == expected.end() ? kNoRow : found->second));
        known += found != expected.end();
      }
      CHECK(said == known);
    }
  }
}

TEST_CASE("segments stay below their load limit, and memory stays proportional") {
  RowIndex index({}, std::make_shared<Epochs>());
  for (uint64_t id = 0; id < 300'000; id++) REQUIRE(index.insert(id, static_cast<uint32_t>(id)) == id);
  const double load = 300'000. / static_cast<double>(index.segments() * RowSegment::kCapacity);
  CHECK(load > 0.28);
  CHECK(load <= 0.6);
  CHECK(index.bytes() < 300'000 * 50);
}

TEST_CASE("ids whose hashes share many upper bits eventually find no slot, and take little memory") {
  RowIndex index({}, std::make_shared<Epochs>());
  uint32_t row = 0;
  for (uint64_t low = 0; low < 20'000; low++) {
    const uint64_t id = idOfHash(uint64_t{0x123456789} << 28 | low << 8);
    const uint32_t got = index.insert(id, row);
    if (got == kNoRow) break;
    REQUIRE(got == row++);
  }
  CHECK(row == RowSegment::kEntriesMax);
  CHECK(index.bytes() < 64 << 20);
  // The others still fit.
  for (uint64_t id = 0; id < 10'000; id++) CHECK(index.insert(id, row) == row);
  CHECK(index.find(idOfHash(uint64_t{0x123456789} << 28)) == 0);
}

TEST_CASE("ids whose hashes agree in the lower bits are found all the same") {
  RowIndex index({}, std::make_shared<Epochs>());
  constexpr uint32_t kIds = 10'000;
  for (uint32_t i = 0; i < kIds; i++) REQUIRE(index.insert(idOfHash(rowHash(i) >> 10 << 10 | 1023), i) == i);
  for (uint32_t i = 0; i < kIds; i++) REQUIRE(index.find(idOfHash(rowHash(i) >> 10 << 10 | 1023)) == i);
  CHECK(index.bytes() < kIds * 100);
}

TEST_CASE("an index of any range keeps the order of hashes") {
  Random random(3);
  const HashRange ranges[] = {{0, UINT64_MAX},
                              {0, UINT64_MAX / 3},
                              {UINT64_MAX / 3 + 1, UINT64_MAX / 3 * 2},
                              {UINT64_MAX - 1'000'000'000, UINT64_MAX},
                              {uint64_t{1} << 63, UINT64_MAX},
                              {12345, 12345 + (uint64_t{1} << 40)},
                              {500, 20'500},
                              {7, 7}};
  for (const HashRange& range : ranges) {
    INFO(range.first << " … " << range.last);
    RowIndex index(range, std::make_shared<Epochs>());
    std::map<uint64_t, uint32_t> expected;
    for (const uint64_t hash : {range.first, range.last}) {
      expected.emplace(idOfHash(hash), 5);
      CHECK(index.insert(idOfHash(hash), 5) == 5);
    }
    for (uint32_t i = 0; i < 15'000; i++) {
      const uint64_t id = idOfHash(random.between(range.first, range.last));
      CHECK(index.insert(id, i) == expected.try_emplace(id, i).first->second);
    }
    requireEqual(index, expected);
  }
}

TEST_CASE("a walk finds each permanent entry once, whatever happens between its steps") {
  Random random(8);
  RowIndex index({}, std::make_shared<Epochs>());
  std::vector<uint64_t> stay, leave;
  for (uint32_t i = 0; i < 20'000; i++) {
    (i % 2 == 0 ? stay : leave).push_back(random.engine()());
    REQUIRE(index.insert((i % 2 == 0 ? stay : leave).back(), i) == i);
  }
  RowCursor cursor;
  std::vector<RowEntry> some, all;
  for (index.next(cursor, some); !some.empty(); index.next(cursor, some)) {
    all.insert(all.end(), some.begin(), some.end());
    for (uint32_t i = 0; i < 3000; i++) REQUIRE(index.insert(random.engine()(), i) == i);
    std::vector<uint32_t> rows;
    REQUIRE(index.erase(std::span(leave).subspan(0, 100), rows));
    leave.erase(leave.begin(), leave.begin() + 100);
  }
  CHECK(
      std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.hash <= b.hash; }));
  std::map<uint64_t, int> times;
  for (const RowEntry& entry : all) times[entry.id]++;
  for (const uint64_t id : stay) CHECK(times[id] == 1);
}

TEST_CASE("segments that a guard may read are not reused before it ends") {
  const auto epochs = std::make_shared<Epochs>();
  RowIndex index({}, epochs);
  for (uint32_t i = 0; i < RowSegment::kEntriesMax; i++) REQUIRE(index.insert(i, i) == i);
  const uint64_t before = index.segments();
  auto guard = std::make_optional<Epochs::Guard>(*epochs);
  const auto eraseAndAdd = [&] {
    std::vector<uint32_t> rows;
    REQUIRE(index.erase(std::vector<uint64_t>{5}, rows));
    REQUIRE(index.insert(5, 5) == 5);
  };
  for (int i = 0; i < 10; i++) eraseAndAdd();
  CHECK(index.segments() == before + 10);
  guard.reset();
  for (int i = 0; i < 10; i++) eraseAndAdd();
  CHECK(index.segments() <= before + 1);
}

TEST_CASE("an index that was reserved allocates no more memory") {
  for (const HashRange& range : {HashRange{}, HashRange{0, UINT64_MAX / 10 * 7}}) {
    RowIndex index(range, std::make_shared<Epochs>());
    REQUIRE(index.reserve(100'000));
    const uint64_t mapped = index.mappedBytes();
    Random random(2);
    for (uint32_t i = 0; i < 100'000; i++) {
      REQUIRE(index.insert(idOfHash(random.between(range.first, range.last)), i) == i);
    }
    CHECK(index.mappedBytes() == mapped);
  }
}

TEST_CASE("a stamp passes when all earlier guards have ended, not later ones") {
  Epochs epochs;
  CHECK(epochs.passed(epochs.stamp()));
  auto before = std::make_optional<Epochs::Guard>(epochs);
  const uint64_t stamp = epochs.stamp();
  const auto after = std::make_optional<Epochs::Guard>(epochs);
  CHECK_FALSE(epochs.passed(stamp));
  before.reset();
  CHECK(epochs.passed(stamp));
  CHECK_FALSE(epochs.passed(epochs.stamp()));
}

}  // namespace
}  // namespace psd
