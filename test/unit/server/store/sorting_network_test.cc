#include "server/store/sorting_network.h"

#include <algorithm>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::sorting_network_test {
namespace {

void apply(const std::vector<Comparator>& network, std::vector<int>& values) {
  for (const Comparator comparator : network) {
    if (values[comparator.low] > values[comparator.high]) {
      std::swap(values[comparator.low], values[comparator.high]);
    }
  }
}

// A network that sorts all sequences of 0 and 1 sorts everything (Knuth, The Art of Computer
// Programming, 5.3.4).
TEST_CASE("a selection network selects, proved with all sequences of 0 and 1") {
  for (uint32_t count = 1; count <= 11; count++) {
    for (uint32_t first = 0; first < count; first++) {
      for (uint32_t last = first + 1; last <= count; last++) {
        const auto network = selectionNetwork(count, first, last);
        for (uint32_t bits = 0; bits < (1u << count); bits++) {
          std::vector<int> values;
          for (uint32_t i = 0; i < count; i++) values.push_back((bits >> i) & 1);
          std::vector<int> sorted = values;
          std::sort(sorted.begin(), sorted.end());
          apply(network, values);
          if (!std::equal(values.begin() + first, values.begin() + last, sorted.begin() + first)) {
            FAIL(first << " … " << last - 1 << " of " << count << " values, bits " << bits);
          }
        }
      }
    }
  }
}

TEST_CASE("selecting takes fewer comparators than sorting") {
  CHECK(selectionNetwork(1, 0, 1).empty());
  CHECK(selectionNetwork(64, 0, 64).size() == SortingNetwork<64>::kSize);
  CHECK(selectionNetwork(64, 0, 1).size() == 63);  // the least of 64
  CHECK(selectionNetwork(64, 31, 33).size() < SortingNetwork<64>::kSize);
}

template <uint32_t kCount>
void checkSort() {
  testing::Random random(kCount);
  for (int round = 0; round < 200; round++) {
    std::vector<float> values(kCount);
    // Few distinct values, so ties.
    for (float& value : values) value = static_cast<float>(random.below(round % 2 == 0 ? 5 : 100000)) - 2;
    std::vector<float> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    sortByNetwork<kCount>(values.data());
    REQUIRE(values == sorted);
  }
}

TEST_CASE("compile-time networks sort") {
  checkSort<1>();
  checkSort<2>();
  checkSort<4>();
  checkSort<8>();
  checkSort<16>();
  checkSort<32>();
  checkSort<64>();
}

}  // namespace
}  // namespace psd::sorting_network_test
