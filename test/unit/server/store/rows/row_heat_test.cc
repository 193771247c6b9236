#include "server/store/rows/row_heat.h"

#include <atomic>
#include <thread>
#include <vector>

#include "test/support/random.h"
#include "test/support/row_model.h"

namespace psd {
namespace {

using testing::makeTable;
using testing::Random;

TEST_CASE("the hottest rows are those with the most updates") {
  const auto table = makeTable(2);
  CHECK(hottestRows(*table, 10).empty());
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < 20'000; id++) ids.push_back(id * 0x9e3779b97f4a7c15);
  PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
  Random random(1);
  for (uint64_t times = 1; times <= 12; times++) {
    // Row i has 12 − i updates, the last of version 12 − i.
    const std::vector<uint64_t> some(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(13 - times));
    table->apply(some, std::vector<float>(some.size() * 2), {}, {times, 1.}, true, Version{times});
  }
  const std::vector<HotRow> hottest = hottestRows(*table, 10);
  REQUIRE(hottest.size() == 10);
  for (uint64_t i = 0; i < 10; i++) {
    CHECK(hottest[i].id == ids[i]);
    CHECK(hottest[i].meta == RowMeta::of(12 - i, 12 - i));
  }
  CHECK(hottestRows(*table, 0).empty());
  CHECK(hottestRows(*table, 50'000).size() == ids.size());
}

TEST_CASE("the hottest rows are found while a writer creates and removes rows") {
  const auto table = makeTable(2);
  const std::vector<uint64_t> hot = {3, 5, 8};
  PSD_REQUIRE_OK(table->insertMissing(hot, Version{1}));
  for (uint64_t i = 1; i <= 9; i++) {
    table->apply(hot, std::vector<float>(6), {}, {i, 1.}, true, Version{i});
  }
  std::atomic<bool> done{false}, failed{false};
  std::thread writer([&] {
    Random random(2);
    do {
      std::vector<uint64_t> ids(3'000);
      for (uint64_t& id : ids) id = 100 + random.below(30'000);
      failed = failed || !table->insertMissing(ids, Version{10}).ok();
      for (uint64_t& id : ids) id = 100 + random.below(30'000);
      failed = failed || !table->erase(ids).ok();
    } while (!done);
  });
  for (int look = 0; look < 200; look++) {
    const std::vector<HotRow> hottest = hottestRows(*table, 3);
    REQUIRE(hottest.size() == 3);
    for (const HotRow& row : hottest) REQUIRE(row.meta.count() == 9);
  }
  done = true;
  writer.join();
  CHECK_FALSE(failed);
}

}  // namespace
}  // namespace psd
