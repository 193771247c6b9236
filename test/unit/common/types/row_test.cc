#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "common/types/row_hash.h"
#include "common/types/row_initial.h"
#include "test/support/catch.h"
#include "test/support/row_ids.h"

namespace psd {
namespace {

using testing::idOfHash;
using testing::Random;

std::vector<float> rowOf(const RowInitial& initial, uint64_t id, size_t dim) {
  std::vector<float> row(dim, -77.f);
  initial.fill(id, row);
  return row;
}

std::vector<uint32_t> bitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST_CASE("the hash of an id is that in the files") {
  CHECK(rowHash(0) == 0xe220a8397b1dcdaf);
  CHECK(rowHash(1) == 0x910a2dec89025cc1);
  CHECK(rowHash(2) == 0x975835de1c9756ce);
  CHECK(rowHash(UINT64_MAX) == 0xe4d971771b652c20);
}

TEST_CASE("each hash belongs to exactly one id") {
  Random random(1);
  for (int i = 0; i < 100'000; i++) {
    const uint64_t hash = random.engine()();
    CHECK(rowHash(idOfHash(hash)) == hash);
    const uint64_t id = testing::mixedId(random);
    CHECK(idOfHash(rowHash(id)) == id);
  }
}

TEST_CASE("ids in any order are spread evenly over upper and lower bits of their hashes") {
  for (const uint64_t step : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 44, uint64_t{1000003}}) {
    INFO("multiples of " << step);
    constexpr size_t kPlaces = 1024, kEach = 100;
    std::vector<double> upper(kPlaces), lower(kPlaces);
    for (uint64_t i = 0; i < kPlaces * kEach; i++) {
      upper[rowHash(i * step) >> 54]++;
      lower[rowHash(i * step) % kPlaces]++;
    }
    for (const auto& counts : {upper, lower}) {
      double chiSquare = 0;
      for (const double count : counts) chiSquare += (count - kEach) * (count - kEach) / kEach;
      // 1,023 degrees of freedom: mean 1,023, deviation 45.
      CHECK(chiSquare > 1023 - 5 * 45);
      CHECK(chiSquare < 1023 + 5 * 45);
    }
  }
}

TEST_CASE("a range of hashes includes both its ends") {
  const HashRange range{10, 20};
  CHECK(range.contains(10));
  CHECK(range.contains(20));
  CHECK_FALSE(range.contains(9));
  CHECK_FALSE(range.contains(21));
  CHECK(HashRange{}.contains(0));
  CHECK(HashRange{}.contains(UINT64_MAX));
}

TEST_CASE("initial values have the same bits everywhere") {
  const auto bits = [](RowInitial::Kind kind, float scale, uint64_t seed, uint64_t id, size_t dim) {
    return bitsOf(rowOf({kind, scale, seed}, id, dim));
  };
  using Bits = std::vector<uint32_t>;
  CHECK(bits(RowInitial::Kind::uniform, 0.01f, 1, 0, 5) ==
        Bits{0x3bfbdee8, 0xbc08c97e, 0x3c0a4220, 0xbbfb37eb, 0x3bed5f98});
  CHECK(bits(RowInitial::Kind::uniform, 0.5f, 7, UINT64_MAX, 5) ==
        Bits{0xbe4a5230, 0x3e133624, 0x3ed2858e, 0xbe126f18, 0x3de24828});
  CHECK(bits(RowInitial::Kind::normal, 0.02f, 1, 42, 5) ==
        Bits{0xbbb09896, 0x3c92b0d9, 0x3cc1c458, 0x3c426da7, 0xbbc87761});
  CHECK(bits(RowInitial::Kind::normal, 1.f, 3, UINT64_MAX, 4) ==
        Bits{0x3f2745ff, 0x3eaab7d1, 0xbef50902, 0x3f7eda30});
  CHECK(bits(RowInitial::Kind::zero, 1.f, 3, 5, 4) == Bits(4, 0));
}

TEST_CASE("a shorter row is a prefix of a longer one, for any length") {
  for (const auto kind : {RowInitial::Kind::zero, RowInitial::Kind::uniform, RowInitial::Kind::normal}) {
    const RowInitial initial{kind, 0.1f, 5};
    const std::vector<float> longest = rowOf(initial, 99, 4096);
    for (const size_t dim : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 1001}) {
      const std::vector<float> row = rowOf(initial, 99, dim);
      CHECK(std::equal(row.begin(), row.end(), longest.begin()));
    }
  }
}

/// Mean, deviation, and the correlation of neighbours.
struct Statistics {
  double mean = 0, deviation = 0, neighbours = 0, least = 0, most = 0;
};

Statistics statisticsOf(const std::vector<float>& values) {
  Statistics found;
  const auto count = static_cast<double>(values.size());
  for (const float value : values) found.mean += value / count;
  double square = 0, product = 0;
  for (size_t i = 0; i < values.size(); i++) {
    const double value = values[i] - found.mean;
    square += value * value / count;
    if (i > 0) product += value * (values[i - 1] - found.mean) / count;
  }
  found.deviation = std::sqrt(square);
  found.neighbours = product / square;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  found.least = *least;
  found.most = *most;
  return found;
}

TEST_CASE("initial values have the distribution of their kind, along rows and across ids") {
  constexpr float kScale = 0.25f;
  constexpr size_t kCount = 200'000;
  const double near = 5 / std::sqrt(static_cast<double>(kCount));
  for (const auto kind : {RowInitial::Kind::uniform, RowInitial::Kind::normal}) {
    for (const bool across : {false, true}) {
      const RowInitial initial{kind, kScale, 11};
      std::vector<float> values;
      for (uint64_t id = 0; values.size() < kCount; id++) {
        const std::vector<float> row = rowOf(initial, id, 10);
        across ? values.push_back(row[3]) : (void)values.insert(values.end(), row.begin(), row.end());
      }
      INFO("kind " << static_cast<int>(kind) << ", across ids " << across);
      const Statistics found = statisticsOf(values);
      const bool uniform = kind == RowInitial::Kind::uniform;
      CHECK(std::abs(found.mean) < near * kScale);
      CHECK(std::abs(found.deviation - kScale / (uniform ? std::sqrt(3) : 1)) < near * kScale);
      CHECK(std::abs(found.neighbours) < near);
      const double bound = uniform ? kScale : 4.9 * kScale;
      CHECK(found.least >= -bound);
      CHECK(found.most <= bound);
      CHECK(found.most > 0.75 * bound);
    }
  }
}

TEST_CASE("other ids and other seeds have other rows") {
  std::set<std::vector<uint32_t>> rows;
  for (uint64_t seed = 0; seed < 50; seed++) {
    for (uint64_t id = 0; id < 50; id++) rows.insert(bitsOf(rowOf({.seed = seed}, id << 20, 2)));
  }
  CHECK(rows.size() == 2500);
}

TEST_CASE("a row is written within its bounds at any alignment") {
  for (size_t begin = 0; begin < 9; begin++) {
    std::array<float, 64> memory;
    memory.fill(-7);
    RowInitial{}.fill(3, std::span(memory).subspan(begin, 21));
    const std::vector<float> row = rowOf({}, 3, 21);
    CHECK(std::equal(row.begin(), row.end(), memory.begin() + static_cast<ptrdiff_t>(begin)));
    CHECK(std::count(memory.begin(), memory.end(), -7.f) == 64 - 21);
  }
}

}  // namespace
}  // namespace psd
