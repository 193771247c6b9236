#include "trainer/client/transport/slices.h"

#include <algorithm>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::client_slices_test {
namespace {

using testing::Random;

constexpr uint64_t kGrain = kLayoutGrainElements;

TEST_CASE("a shard that fits is one slice") {
  const auto slices = cutIntoSlices(ShardPlan::make(160, 2), 1000);
  REQUIRE(slices.size() == 2);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK(slices[i].shard == ShardId{i});
    CHECK(slices[i].offset == 0);
    CHECK(slices[i].count == 80);
    CHECK(slices[i].arena == 80 * i);
  }
}

TEST_CASE("a shard that does not fit is cut evenly") {
  const auto slices = cutIntoSlices(ShardPlan::make(1600, 1), 800 - 16);  // two would be just too large
  std::vector<uint64_t> counts;
  for (const Slice& slice : slices) counts.push_back(slice.count);
  CHECK(counts == std::vector<uint64_t>{544, 544, 512});
}

TEST_CASE("a plan without shards has no slices") { CHECK(cutIntoSlices({}, 100).empty()); }

TEST_CASE("slices have their shard's dtype, and their place in a native arena") {
  const GroupRun runs[] = {{32, 0, DType::f32}, {64, 0, DType::bf16}, {16, 0, DType::f32}};
  const auto slices = cutIntoSlices(ShardPlan::make(runs, 1), 32);
  REQUIRE(slices.size() == 4);
  const std::vector<std::pair<DType, uint64_t>> expected = {
      {DType::f32, 0}, {DType::bf16, 128}, {DType::bf16, 192}, {DType::f32, 256}};
  for (size_t i = 0; i < slices.size(); i++) {
    INFO("slice " << i);
    CHECK(slices[i].dtype == expected[i].first);
    CHECK(slices[i].nativeAt == expected[i].second);
  }
}

TEST_CASE("slices cover every shard in order, within bounds and on the grain") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    Random random(seed);
    const uint64_t total = random.between(1, uint64_t{1} << random.between(4, 20));
    const auto shards = static_cast<uint32_t>(random.between(1, 9));
    const uint64_t most = random.between(0, std::max<uint64_t>(total / random.between(1, 50), 40));
    INFO("seed " << seed << ": " << total << " elements, " << shards << " shards, slices of " << most);
    const ShardPlan plan = ShardPlan::make(total, shards);
    const auto slices = cutIntoSlices(plan, most);
    const uint64_t bound = std::max(most, kGrain);
    size_t next = 0;
    for (const ShardRange& shard : plan.shards) {
      uint64_t offset = 0, least = UINT64_MAX, largest = 0;
      size_t pieces = 0;
      for (; next < slices.size() && slices[next].shard == shard.id; next++, pieces++) {
        const Slice& slice = slices[next];
        REQUIRE(slice.offset == offset);
        REQUIRE(slice.arena == shard.begin + offset);
        REQUIRE(slice.offset % kGrain == 0);
        REQUIRE(slice.count > 0);
        REQUIRE(slice.count <= bound);
        offset += slice.count;
        if (offset < shard.count) {
          REQUIRE(slice.count % kGrain == 0);
          least = std::min(least, slice.count);
        }
        largest = std::max(largest, slice.count);
      }
      REQUIRE(offset == shard.count);
      if (pieces > 1) REQUIRE(least == largest);  // only the last may be smaller
      // No more pieces than a cut into the largest possible grains would need.
      const uint64_t whole = bound / kGrain * kGrain;
      REQUIRE(pieces == (shard.count + whole - 1) / whole);
    }
    REQUIRE(next == slices.size());
  }
}

TEST_CASE("slices are divided by their shards, and each connection's stay in order") {
  const auto slices = cutIntoSlices(ShardPlan::make(10'000, 5), 512);
  for (const uint32_t links : {1u, 2u, 3u, 7u}) {
    INFO(links);
    const DividedSlices divided(slices, links);
    REQUIRE(divided.places.size() == slices.size());
    std::vector<size_t> next(links);
    for (size_t i = 0; i < slices.size(); i++) {
      CHECK(divided.places[i].link == slices[i].shard.value % links);
      CHECK(divided.places[i].index == next[divided.places[i].link]++);
    }
  }
}

TEST_CASE("more small slices than large ones may be unanswered, and never more elements") {
  const auto of = [](const std::vector<uint64_t>& counts) {
    std::vector<Slice> slices;
    for (const uint64_t count : counts) slices.push_back({.count = count});
    return slices;
  };
  CHECK(slicesInFlight({}, 4, 1000) == 4);
  CHECK(slicesInFlight(of({1000, 1000, 1000, 1000, 1000, 1000}), 4, 1000) == 4);
  CHECK(slicesInFlight(of({10, 1000, 10, 10, 1000, 10, 10}), 4, 1000) == 7);
  CHECK(slicesInFlight(of({500, 500, 500, 500, 500, 500, 500, 500, 500}), 4, 1000) == 8);
  CHECK(slicesInFlight(of(std::vector<uint64_t>(1000, 1)), 4, 1000) == 64);
  CHECK(slicesInFlight(of(std::vector<uint64_t>(1000, 1)), 100, 1000) == 100);
}

}  // namespace
}  // namespace psd::client_slices_test
