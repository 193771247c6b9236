#include "trainer/dataset/sharder.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "test/support/catch.h"

namespace psd::sharder_test {

TEST_CASE("the parts of an epoch are disjoint, cover all samples and differ by at most one") {
  for (const uint32_t samples : {1u, 2u, 7u, 64u, 1000u}) {
    for (const uint32_t worldSize : {1u, 2u, 3u, 7u, 64u}) {
      if (worldSize > samples) continue;
      for (const uint64_t epoch : {0u, 1u, 5u}) {
        std::vector<uint32_t> all;
        for (uint32_t rank = 0; rank < worldSize; ++rank) {
          const Sharder sharder(3, samples, Rank{rank}, worldSize);
          const auto part = sharder.part(epoch);
          CHECK(part.size() == sharder.partSize());
          CHECK(part.size() == samples / worldSize + (rank < samples % worldSize ? 1 : 0));
          all.insert(all.end(), part.begin(), part.end());
        }
        std::sort(all.begin(), all.end());
        std::vector<uint32_t> expected(samples);
        std::iota(expected.begin(), expected.end(), 0u);
        CHECK(all == expected);
      }
    }
  }
}

TEST_CASE("the order depends on seed and epoch, and on nothing else") {
  const Sharder sharder(3, 1000, Rank{0}, 2);
  CHECK(sharder.part(0) == Sharder(3, 1000, Rank{0}, 2).part(0));
  CHECK(sharder.part(0) != sharder.part(1));
  CHECK(sharder.part(0) != Sharder(4, 1000, Rank{0}, 2).part(0));
  // A neighbouring seed does not give the same order one epoch later.
  CHECK(sharder.part(1) != Sharder(4, 1000, Rank{0}, 2).part(0));
  auto sorted = sharder.part(0);
  CHECK_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
}

TEST_CASE("every sample reaches every position: the shuffle is uniform") {
  // The position of sample 0 of 10 over 10,000 epochs; each position expects 1000, standard deviation 30.
  std::vector<int> places(10);
  const Sharder sharder(1, 10, Rank{0}, 1);
  for (uint64_t epoch = 0; epoch < 10'000; ++epoch) {
    const auto part = sharder.part(epoch);
    ++places[std::find(part.begin(), part.end(), 0u) - part.begin()];
  }
  for (const int count : places) {
    CHECK(count > 850);
    CHECK(count < 1150);
  }
}

}  // namespace psd::sharder_test
