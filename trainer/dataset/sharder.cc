#include "trainer/dataset/sharder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "trainer/dataset/random.h"

namespace psd {
namespace {

uint32_t partBegin(uint32_t sampleCount, uint32_t rank, uint32_t worldSize) {
  const uint32_t larger = sampleCount % worldSize;  // number of parts with one extra sample
  return sampleCount / worldSize * rank + std::min(rank, larger);
}

}  // namespace

Sharder::Sharder(uint64_t seed, uint32_t sampleCount, Rank rank, uint32_t worldSize)
    : seed_(seed),
      sampleCount_(sampleCount),
      begin_(partBegin(sampleCount, rank.value, worldSize)),
      end_(partBegin(sampleCount, rank.value + 1, worldSize)) {}

std::vector<uint32_t> Sharder::part(uint64_t epoch) const {
  std::vector<uint32_t> order(sampleCount_);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed_, epoch);
  for (uint32_t last = sampleCount_; last > 1; --last) {  // Fisher–Yates
    std::swap(order[last - 1], order[random.below(last)]);
  }
  return {order.begin() + begin_, order.begin() + end_};
}

}  // namespace psd
