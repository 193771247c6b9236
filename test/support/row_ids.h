#pragma once

#include <cstdint>
#include <vector>

#include "common/types/row_hash.h"
#include "test/support/random.h"

namespace psd::testing {

/// The id that has this hash.
constexpr uint64_t idOfHash(uint64_t hash) {
  uint64_t state = hash ^ hash >> 31 ^ hash >> 62;
  state *= 0x319642b2d24d8ec3;
  state ^= state >> 27 ^ state >> 54;
  state *= 0x96de1b173f119089;
  state ^= state >> 30 ^ state >> 60;
  return state - kSplitMixStep;
}

/// Ids of many kinds: random, the smallest and the largest, consecutive ones, multiples of 2^20.
inline uint64_t mixedId(Random& random) {
  switch (random.below(4)) {
    case 0: return random.engine()();
    case 1: return random.oneIn(2) ? random.below(3) : UINT64_MAX - random.below(3);
    case 2: return random.below(100'000);
    default: return random.below(100'000) << 20;
  }
}

inline std::vector<uint64_t> mixedIds(size_t count, Random& random) {
  std::vector<uint64_t> ids(count);
  for (uint64_t& id : ids) id = mixedId(random);
  return ids;
}

}  // namespace psd::testing
