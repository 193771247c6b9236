#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "server/store/rows/row_meta.h"
#include "server/store/rows/row_numbers.h"
#include "server/store/rows/row_storage.h"
#include "test/support/catch.h"

namespace psd {
namespace {

const Slot kWide{"wide"};
const Slot kSum{.name = "sum", .perRow = true};

TEST_CASE("a row starts at a cache line, or shares one without crossing it") {
  for (uint32_t dim = 1; dim <= RowLayout::kDimMax; dim++) {
    for (const auto& slots : {std::vector<Slot>{}, {kWide}, {kSum}, {kWide, kSum, kWide}}) {
      const RowLayout layout(dim, slots);
      const uint32_t bytes = layout.stride() * 4;
      CHECK((bytes == 16 || bytes == 32 || bytes % 64 == 0));
      CHECK(bytes >= layout.rowFloats() * 4);
      CHECK(bytes < layout.rowFloats() * 4 + 64);
      CHECK(bytes * uint64_t{layout.rowsPerChunk()} <= RowLayout::kChunkBytes);
      CHECK(bytes * uint64_t{layout.rowsPerChunk()} > RowLayout::kChunkBytes / 4);
    }
  }
}

TEST_CASE("planes of a chunk do not overlap") {
  const RowLayout layout(5, {kWide, kSum, kWide, kSum});
  CHECK(layout.planeCount() == 5);
  std::set<uint64_t> places;
  for (uint32_t plane = 0; plane < layout.planeCount(); plane++) {
    for (const uint32_t row : {0u, 1u, 2u, layout.rowsPerChunk() - 1}) {
      for (uint32_t i = 0; i < layout.width(plane); i++) {
        const uint64_t place = layout.planeBegin(plane) + uint64_t{row} * layout.planeStride(plane) + i;
        CHECK(place < layout.chunkBytes() / 4);
        CHECK(places.insert(place).second);
      }
    }
  }
}

TEST_CASE("a meta word's numbers saturate") {
  const RowMeta meta = RowMeta::of(7, 3);
  CHECK(meta.version() == 7);
  CHECK(meta.count() == 3);
  CHECK(meta.updated(9) == RowMeta::of(9, 4));
  const RowMeta most = RowMeta::of(UINT64_MAX, UINT64_MAX);
  CHECK(most.version() == RowMeta::kVersionMax);
  CHECK(most.count() == RowMeta::kCountMax);
  CHECK(most.updated(UINT64_MAX) == most);
  CHECK(most.updated(1) == RowMeta::of(1, RowMeta::kCountMax));
}

/// Records which chunks are open.
struct Chunks {
  std::unique_ptr<RowStorage> storage = makeCpuRowStorage(RowLayout::kDimMax, Optimizer());
  std::shared_ptr<Epochs> epochs = std::make_shared<Epochs>();
  RowNumbers numbers{*storage, epochs};
  const uint32_t each = storage->layout().rowsPerChunk();

  std::vector<uint32_t> take(uint64_t count) {
    PSD_REQUIRE_OK(numbers.prepare(count));
    std::vector<uint32_t> rows;
    for (uint64_t i = 0; i < count; i++) rows.push_back(numbers.take());
    return rows;
  }
};

TEST_CASE("row numbers are in use once at a time, free ones first") {
  Chunks chunks;
  const std::vector<uint32_t> first = chunks.take(chunks.each + 10);
  CHECK(std::set<uint32_t>(first.begin(), first.end()).size() == first.size());
  const uint64_t rowBytes = chunks.storage->layout().rowBytes() + RowNumbers::kMetaBytes;
  CHECK(chunks.numbers.bytes() == first.size() * rowBytes);
  chunks.numbers.setMeta(first[3], RowMeta::of(4, 4));
  chunks.numbers.retire({first[3], first[8]});
  CHECK(chunks.numbers.bytesFor(2) == 0);
  CHECK(chunks.numbers.bytesFor(3) == rowBytes);
  const std::vector<uint32_t> again = chunks.take(2);
  CHECK(std::set<uint32_t>(again.begin(), again.end()) == std::set<uint32_t>{first[3], first[8]});
  CHECK(chunks.numbers.meta(first[3]) == RowMeta{});
  CHECK(chunks.numbers.bytes() == first.size() * rowBytes);
}

TEST_CASE("row numbers that a guard may know are not reused before it ends") {
  Chunks chunks;
  const std::vector<uint32_t> rows = chunks.take(10);
  {
    const Epochs::Guard guard(*chunks.epochs);
    chunks.numbers.retire({rows[1]});
    CHECK(chunks.take(1)[0] != rows[1]);
  }
  CHECK(chunks.take(1)[0] == rows[1]);
}

TEST_CASE("the memory of an empty chunk is released, and reused") {
  Chunks chunks;
  const std::vector<uint32_t> first = chunks.take(chunks.each), second = chunks.take(chunks.each);
  const uint64_t bytes = chunks.numbers.bytes();
  chunks.numbers.retire(first);
  CHECK(chunks.numbers.bytes() == bytes / 2);
  chunks.numbers.retire(second);
  CHECK(chunks.numbers.bytes() == 0);
  const std::vector<uint32_t> again = chunks.take(2 * chunks.each);
  CHECK(std::set<uint32_t>(again.begin(), again.end()).size() == again.size());
  CHECK(chunks.numbers.bytes() == bytes);
  CHECK(*std::max_element(again.begin(), again.end()) < 2 * chunks.each);
}

}  // namespace
}  // namespace psd
