#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "test/support/any_optimizer.h"
#include "test/support/row_ids.h"
#include "test/support/row_model.h"

namespace psd {
namespace {

using testing::idOfHash;
using testing::makeTable;
using testing::mixedGradient;
using testing::mixedId;
using testing::mixedIds;
using testing::Random;
using testing::requireEqual;
using testing::RowModel;

using Ids = std::vector<uint64_t>;

std::vector<float> gather(const RowTable& table, const Ids& ids) {
  std::vector<float> out(ids.size() * table.dim(), -77.f);
  table.gather(ids, out);
  return out;
}

/// One table and its model with the same parameters.
struct Pair {
  Pair(uint32_t dim, const Optimizer& optimizer, const RowInitial& initial = {})
      : table(makeTable(dim, optimizer, {.initial = initial})), model(dim, initial, optimizer) {}

  void insert(const Ids& ids, Version version) {
    const auto made = table->insertMissing(ids, version);
    PSD_REQUIRE_OK(made);
    REQUIRE(*made == model.insertMissing(ids, version));
  }
  void apply(const Ids& ids, const std::vector<float>& gradients, const RowChange& change,
             const UpdateScalars& update, bool rowSteps, Version version) {
    REQUIRE(table->apply(ids, gradients, change, update, rowSteps, version) ==
            model.apply(ids, gradients, change, update, rowSteps, version));
  }
  void erase(const Ids& ids) {
    const auto gone = table->erase(ids);
    PSD_REQUIRE_OK(gone);
    REQUIRE(*gone == model.erase(ids));
  }
  void compareGathered(const Ids& ids) const {
    std::vector<float> expected, out(ids.size() * table->dim(), -77.f);
    const uint64_t known = model.gather(ids, expected);
    REQUIRE(table->gather(ids, out) == known);
    REQUIRE(out == expected);
  }

  std::unique_ptr<RowTable> table;
  RowModel model;
};

/// All operations in turn, with random ids, some present and some duplicated.
void runCourse(uint32_t dim, const Optimizer& optimizer, uint64_t seed) {
  INFO(optimizer.describe() << ", dim " << dim << ", seed " << seed);
  Random random(seed);
  Pair pair(dim, optimizer, {RowInitial::Kind::normal, 0.5f, seed});
  for (uint64_t number = 1; number <= 8; number++) {
    Ids ids = mixedIds(random.below(200), random);
    for (const auto& [id, row] : pair.model.rows()) {
      if (random.oneIn(4)) ids.push_back(id);
    }
    if (!ids.empty()) ids.push_back(ids[random.below(ids.size())]);
    if (!random.oneIn(4)) pair.insert(ids, Version{number});
    RowChange change;
    if (random.oneIn(2)) change = {.scale = 0.5f, .limit = 1.f, .rowNorm = random.oneIn(2) ? 0.7f : 1e30f};
    pair.apply(ids, mixedGradient(ids.size() * dim, random), change, {number, optimizer.learningRate(number)},
               random.oneIn(2), Version{number});
    pair.compareGathered(ids);
    Ids some;
    for (const auto& [id, row] : pair.model.rows()) {
      if (random.oneIn(5)) some.insert(some.end(), {id, id + 1});
    }
    if (random.oneIn(2)) pair.erase(some);
  }
  requireEqual(*pair.table, pair.model.rows());
}

TEST_CASE("a table matches its model under every optimizer") {
  for (const Optimizer& optimizer : testing::everyOptimizerOfRows(3)) {
    for (const uint32_t dim : {1u, 3u, 32u}) runCourse(dim, optimizer, dim);
  }
  for (const Optimizer& optimizer : testing::optimizersOfWholeRows()) {
    for (const uint32_t dim : {1u, 2u, 15u, 16u, 17u, 32u, 100u}) runCourse(dim, optimizer, dim);
  }
}

TEST_CASE("a table matches its model with rows of any length") {
  Optimizer optimizer;
  optimizer.algorithm = Adagrad{};
  for (const uint32_t dim : {2u, 5u, 7u, 8u, 9u, 16u, 31u, 33u, 63u, 65u, 127u, 1000u, 4095u, 4096u}) {
    runCourse(dim, optimizer, dim);
  }
}

TEST_CASE("operations accept no ids, and a table without rows") {
  const auto table = makeTable(4);
  CHECK(table->gather({}, {}) == 0);
  CHECK(table->find({}, {}) == 0);
  CHECK(table->apply({}, {}, {}, {}, true, Version{1}) == 0);
  CHECK(*table->insertMissing({}, Version{1}) == 0);
  CHECK(*table->erase({}) == 0);
  CHECK(*table->erase(Ids{1, 2, 3}) == 0);
  PSD_REQUIRE_OK(table->restore({}, {}, {}));
  PSD_REQUIRE_OK(table->reserve(0));
  RowCursor cursor;
  std::vector<RowEntry> entries{{}};
  table->next(cursor, entries);
  CHECK(entries.empty());
  CHECK(table->size().rows == 0);
  CHECK(table->size().load == 0);
}

TEST_CASE("reading creates no rows, and an unknown row is read as its initial values") {
  const auto table = makeTable(8, {}, {.initial = {RowInitial::Kind::uniform, 1.f, 9}});
  Random random(1);
  const Ids ids = mixedIds(5000, random);
  const uint64_t bytes = table->size().bytes + table->size().indexBytes;
  const std::vector<float> before = gather(*table, ids);
  CHECK(table->size().rows == 0);
  CHECK(table->size().bytes + table->size().indexBytes == bytes);
  PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
  CHECK(gather(*table, ids) == before);
}

TEST_CASE("rows that were removed between pull and push leave the others their gradients") {
  const auto table = makeTable(2, {}, {.initial = {RowInitial::Kind::zero}});
  PSD_REQUIRE_OK(table->insertMissing(Ids{1, 2, 3}, Version{1}));
  PSD_REQUIRE_OK(table->erase(Ids{2}));
  CHECK(table->apply(Ids{1, 2, 3}, std::vector<float>{1, 1, 2, 2, 3, 3}, {}, {1, 1.}, true, Version{2}) == 2);
  CHECK(gather(*table, {1, 2, 3}) == std::vector<float>{-1, -1, 0, 0, -3, -3});
}

TEST_CASE("a removed row that returns starts from scratch") {
  Optimizer optimizer;
  optimizer.algorithm = Adam{};
  Pair pair(3, optimizer);
  const std::vector<float> gradient(3, 1.f);
  pair.insert({7}, Version{1});
  pair.apply({7}, gradient, {}, {1, 0.1}, true, Version{1});
  pair.erase({7});
  pair.insert({7}, Version{5});
  pair.compareGathered({7});
  pair.apply({7}, gradient, {}, {2, 0.1}, true, Version{6});
  requireEqual(*pair.table, pair.model.rows());
  CHECK(pair.model.rows().at(7).meta == RowMeta::of(6, 1));
}

TEST_CASE("an update count saturates, and steps continue") {
  Optimizer optimizer;
  optimizer.algorithm = Adam{};
  const auto table = makeTable(1, optimizer);
  PSD_REQUIRE_OK(table->insertMissing(Ids{4}, Version{1}));
  std::vector<uint32_t> rows(1);
  CHECK(table->find(Ids{4}, rows) == 1);
  table->setMeta(rows[0], RowMeta::of(3, RowMeta::kCountMax - 1));
  for (int i = 0; i < 3; i++) {
    const std::vector<float> before = gather(*table, {4});
    CHECK(table->apply(Ids{4}, std::vector<float>{1.f}, {}, {1, 0.1}, true, Version{9}) == 1);
    CHECK(gather(*table, {4})[0] < before[0]);
  }
  CHECK(table->meta(rows[0]) == RowMeta::of(9, RowMeta::kCountMax));
}

TEST_CASE("a full table rejects new rows whole, and accepts existing ones") {
  const auto table = makeTable(4, {}, {.limits = {.rowsMax = 100}});
  Ids ids;
  for (uint64_t id = 0; id < 100; id++) ids.push_back(id);
  CHECK(*table->insertMissing(ids, Version{1}) == 100);
  CHECK(*table->insertMissing(ids, Version{1}) == 0);
  const auto refused = table->insertMissing(Ids{1, 2, 100}, Version{1});
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message() ==
        "embedding table: cannot add 1 rows to the 100 of this row shard, whose share of max_rows is 100; "
        "raise "
        "tables[].max_rows, or set evict or admit");
  CHECK(*table->erase(Ids{5, 6}) == 2);
  CHECK_FALSE(table->insertMissing(Ids{5, 200, 300}, Version{1}).ok());
  CHECK(table->size().rows == 98);
  CHECK(*table->insertMissing(Ids{200, 300, 200, 300, 300}, Version{1}) == 2);
  table->setLimits({.rowsMax = 101});
  CHECK_FALSE(table->insertMissing(Ids{5, 6}, Version{1}).ok());
  CHECK(*table->insertMissing(Ids{5}, Version{1}) == 1);
  CHECK_FALSE(table->reserve(102).ok());
}

TEST_CASE("free rows take no memory when they are reused") {
  testing::needsCpu();  // other devices allocate whole chunks
  const auto table = makeTable(128);
  Ids ids;
  for (uint64_t id = 0; id < 5000; id++) ids.push_back(id);
  const uint64_t first = table->bytesFor(1), each = table->bytesFor(2) - first;
  CHECK(first > each);  // the first one allocates memory for more
  CHECK(each >= 128 * sizeof(float) + RowNumbers::kMetaBytes);
  CHECK(table->bytesFor(ids.size()) == first + (ids.size() - 1) * each);
  PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
  CHECK(table->size().bytes == ids.size() * each);
  CHECK(*table->erase(Ids{0, 1}) == 2);
  table->reclaim();
  CHECK(table->bytesFor(2) == 0);
  CHECK(table->bytesFor(3) == each);
  CHECK(*table->insertMissing(Ids{10'000, 10'001}, Version{1}) == 2);
  CHECK(table->size().bytes == ids.size() * each);
}

/// A storage in whose updates another, older one resets the row's meta word, as may happen when both race.
class RacingStorage final : public RowStorage {
 public:
  RacingStorage(std::unique_ptr<RowStorage> inner, std::function<void()> setBack)
      : inner_(std::move(inner)), setBack_(std::move(setBack)) {}

  const RowLayout& layout() const override { return inner_->layout(); }
  const Optimizer& optimizer() const override { return inner_->optimizer(); }
  void setOptimizer(const Optimizer& optimizer) override { inner_->setOptimizer(optimizer); }
  uint32_t batchRows() const override { return inner_->batchRows(); }
  Status open(uint32_t chunk, bool touched) override { return inner_->open(chunk, touched); }
  void close(uint32_t chunk) override { inner_->close(chunk); }
  void gather(Rows rows, std::span<float> out, Rows next) const override { inner_->gather(rows, out, next); }
  void create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) override {
    inner_->create(rows, ids, initial);
  }
  void apply(Rows rows, std::span<const float> gradients, const RowUpdate& update, Rows next) override {
    setBack_();
    inner_->apply(rows, gradients, update, next);
  }
  void readPlane(uint32_t plane, Rows rows, std::span<float> out) const override {
    inner_->readPlane(plane, rows, out);
  }
  void writePlane(uint32_t plane, Rows rows, std::span<const float> values) override {
    inner_->writePlane(plane, rows, values);
  }

 private:
  const std::unique_ptr<RowStorage> inner_;
  const std::function<void()> setBack_;
};

TEST_CASE("values of an update have its version, though an older update reset that meanwhile") {
  std::unique_ptr<RowTable> table;
  const auto setBack = [&] {
    uint32_t row = kNoRow;
    table->find(Ids{7}, {&row, 1});
    table->setMeta(row, RowMeta::of(3, 5));
  };
  table = std::make_unique<RowTable>(
      RowTable::Options{}, std::make_unique<RacingStorage>(makeCpuRowStorage(1, Optimizer{}), setBack),
      std::make_shared<Epochs>());
  PSD_REQUIRE_OK(table->insertMissing(Ids{7}, Version{1}));
  const std::vector<float> gradient(1);
  CHECK(table->apply(Ids{7}, gradient, {}, {1, 1.}, true, Version{9}) == 1);
  uint32_t row = kNoRow;
  table->find(Ids{7}, {&row, 1});
  CHECK(table->meta(row).version() == 9);
}

TEST_CASE("a device's chunks count whole, and are released") {
  if (!testing::testsCuda()) testing::skipTest("tests tables in a device's memory");
  const auto table = makeTable(128);
  const uint64_t chunk =
      table->layout().chunkBytes() + table->layout().rowsPerChunk() * RowNumbers::kMetaBytes;
  const uint64_t each = table->layout().rowsPerChunk();
  const uint64_t first =
      sizeof(RowSegment) + 2 * 4096;  // the index's segment and two pages, with the first row
  CHECK(table->bytesFor(1) == chunk + first);
  CHECK(table->bytesFor(each + 1) == 2 * chunk + first);
  CHECK(*table->insertMissing(Ids{1}, Version{1}) == 1);
  CHECK(table->size().bytes == chunk);
  CHECK(table->bytesFor(each - 1) == 0);
  CHECK(table->bytesFor(each) == chunk);
  CHECK(*table->erase(Ids{1}) == 1);
  CHECK(table->size().bytes == 0);
}

TEST_CASE("ids of nearly equal hashes are rejected whole when the index has no slot for them") {
  const auto table = makeTable(1);
  Ids ids;
  for (uint64_t low = 0; low < RowSegment::kEntriesMax; low++) ids.push_back(idOfHash(low << 20));
  CHECK(*table->insertMissing(ids, Version{1}) == ids.size());
  Ids more;
  for (uint64_t low = 0; low < 100; low++) more.push_back(idOfHash(low << 20 | 1));
  for (uint64_t i = 0; i < 40; i++) more.insert(more.begin(), rowHash(i));
  const uint64_t bytes = table->size().bytes;
  const auto refused = table->insertMissing(more, Version{1});
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(table->size().rows == ids.size());
  std::vector<uint32_t> rows(more.size());
  CHECK(table->find(more, rows) == 0);
  CHECK(*table->insertMissing(Ids{rowHash(0), rowHash(1)}, Version{1}) == 2);
  CHECK(table->size().bytes <= bytes + 200 * (16 + RowNumbers::kMetaBytes));
}

TEST_CASE("rows read in a walk make an equal table, in any pieces") {
  Optimizer optimizer;
  optimizer.algorithm = RowwiseAdagrad{};
  Pair pair(6, optimizer);
  Random random(4);
  const Ids ids = mixedIds(20'000, random);
  pair.insert(ids, Version{1});
  pair.apply(ids, mixedGradient(ids.size() * 6, random), {}, {1, 0.1}, true, Version{2});
  const auto copy = makeTable(6, optimizer);
  RowCursor cursor;
  std::vector<RowEntry> entries;
  uint64_t last = 0;
  for (pair.table->next(cursor, entries); !entries.empty(); pair.table->next(cursor, entries)) {
    CHECK(entries.size() <= RowSegment::kEntriesMax);
    Ids some;
    std::vector<uint32_t> rows;
    std::vector<RowMeta> metas;
    for (const RowEntry& entry : entries) {
      CHECK(entry.hash == rowHash(entry.id));
      CHECK((last == 0 || entry.hash > last));
      last = entry.hash;
      some.push_back(entry.id);
      rows.push_back(entry.row);
      metas.push_back(pair.table->meta(entry.row));
    }
    std::vector<float> values(rows.size() * 6), sums(rows.size());
    pair.table->readPlane(0, rows, values);
    pair.table->readPlane(1, rows, sums);
    PSD_REQUIRE_OK(copy->restore(some, metas, std::vector<std::span<const float>>{values, sums}));
  }
  requireEqual(*copy, pair.model.rows());
}

TEST_CASE("a table adopts an optimizer's numbers") {
  Optimizer optimizer;
  optimizer.algorithm = Sgd{.weightDecay = 0.5};
  const auto table = makeTable(1, {}, {.initial = {RowInitial::Kind::zero}});
  PSD_REQUIRE_OK(table->insertMissing(Ids{1}, Version{1}));
  const std::vector<float> gradient{-2.f};
  table->apply(Ids{1}, gradient, {}, {1, 1.}, false, Version{1});
  table->setOptimizer(optimizer);
  table->apply(Ids{1}, gradient, {}, {2, 1.}, false, Version{2});
  CHECK(gather(*table, {1}) == std::vector<float>{3.f});
}

TEST_CASE("a reserved table grows without more memory") {
  const auto table = makeTable(32);
  PSD_REQUIRE_OK(table->reserve(10'000));
  Ids ids;
  for (uint64_t id = 0; id < 10'000; id++) ids.push_back(id);
  CHECK(*table->insertMissing(ids, Version{1}) == 10'000);
  CHECK(gather(*table, {9'999}) == gather(*makeTable(32), {9'999}));
}

}  // namespace
}  // namespace psd
