#pragma once

#include <cstdint>

#include "common/types/split_mix.h"

namespace psd {

/// The hash of the id of an embedding table's row, fixed for ever: files and the division of a table into
/// shards depend on it. A bijection of the 64-bit integers, so no two ids have one hash. The top bits choose
/// the shard and then the segment of its index, the low bits the line in the segment.
constexpr uint64_t rowHash(uint64_t id) { return splitMix(id); }

/// Some of all hashes: those from `first` to `last`, both included. A value type.
struct HashRange {
  uint64_t first = 0;
  uint64_t last = UINT64_MAX;  ///< at least `first`

  constexpr bool contains(uint64_t hash) const { return first <= hash && hash <= last; }
  bool operator==(const HashRange&) const = default;
};

}  // namespace psd
