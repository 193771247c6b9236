#include "common/types/range_set.h"

#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::types_range_set_test {
namespace {

TEST_CASE("adjacent ranges merge, overlapping ranges are rejected") {
  RangeSet set;
  CHECK(set.add(10, 10));
  CHECK(set.add(30, 10));
  CHECK(set.pieces() == 2);
  CHECK(set.add(20, 10));
  CHECK(set.pieces() == 1);
  CHECK(set.covered() == 30);
  CHECK_FALSE(set.add(39, 1));
  CHECK_FALSE(set.add(0, 11));
  CHECK_FALSE(set.add(0, 100));
  CHECK_FALSE(set.add(15, 2));
  CHECK(set.covered() == 30);
  CHECK(set.pieces() == 1);
}

TEST_CASE("an empty range changes nothing and overlaps nothing") {
  RangeSet set;
  CHECK(set.add(5, 0));
  CHECK(set.covered() == 0);
  CHECK(set.pieces() == 0);
  CHECK(set.add(0, 10));
  CHECK_FALSE(set.overlaps(5, 0));
  CHECK(set.add(5, 0));
  CHECK(set.pieces() == 1);
}

TEST_CASE("clear removes all ranges") {
  RangeSet set;
  REQUIRE(set.add(0, 10));
  set.clear();
  CHECK(set.covered() == 0);
  CHECK(set.pieces() == 0);
  CHECK(set.add(5, 10));
}

TEST_CASE("a range set agrees with a bitmap") {
  constexpr size_t kIndexes = 200;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    RangeSet set;
    std::vector<bool> bitmap(kIndexes);
    const size_t longest = random.between(1, 40);
    for (int step = 0; step < 100; step++) {
      const size_t begin = random.below(kIndexes);
      const size_t count = random.between(0, std::min(longest, kIndexes - begin));
      bool overlaps = false;
      for (size_t i = begin; i < begin + count; i++) overlaps = overlaps || bitmap[i];
      INFO("step " << step << ": [" << begin << ", " << begin + count << ")");
      REQUIRE(set.overlaps(begin, count) == overlaps);
      REQUIRE(set.add(begin, count) == !overlaps);
      if (!overlaps) {
        for (size_t i = begin; i < begin + count; i++) bitmap[i] = true;
      }
      const size_t from = random.below(kIndexes),
                   taken = random.between(0, std::min(longest, kIndexes - from));
      bool all = true;
      for (size_t i = from; i < from + taken; i++) all = all && bitmap[i];
      REQUIRE(set.contains(from, taken) == all);
      REQUIRE(set.remove(from, taken) == all);
      if (all) {
        for (size_t i = from; i < from + taken; i++) bitmap[i] = false;
      }
      size_t covered = 0, pieces = 0;
      for (size_t i = 0; i < kIndexes; i++) {
        covered += bitmap[i];
        pieces += bitmap[i] && (i == 0 || !bitmap[i - 1]);
      }
      REQUIRE(set.covered() == covered);
      REQUIRE(set.pieces() == pieces);
    }
  }
}

}  // namespace
}  // namespace psd::types_range_set_test
