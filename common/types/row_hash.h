#pragma once

#include <cstdint>

#include "common/types/split_mix.h"

namespace psd {

/// The hash of an embedding row's id. It must never change: files and the division of a table into shards
/// depend on it. A bijection of the 64-bit integers, so there are no collisions. The top bits select the
/// shard and then the segment of its index, the low bits the line in the segment.
constexpr uint64_t rowHash(uint64_t id) { return splitMix(id); }

/// A range of hashes, `first` to `last` inclusive. A value type.
struct HashRange {
  uint64_t first = 0;
  uint64_t last = UINT64_MAX;  ///< at least `first`

  constexpr bool contains(uint64_t hash) const { return first <= hash && hash <= last; }
  bool operator==(const HashRange&) const = default;
};

}  // namespace psd
