#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/shard_plan.h"

namespace psd {

/// One piece of one shard, as a call carries it. Elements; `offset` from the shard's begin.
struct Slice {
  ShardId shard;
  uint64_t offset = 0;
  uint64_t count = 0;
  uint64_t arena = 0;  ///< where it begins in the flat arena
  uint64_t total = 0;  ///< of the whole shard

  bool operator==(const Slice&) const = default;
};

/// Which of so many connections of a trainer carries a shard's slices: all of a shard go over one, in order.
inline uint32_t linkOf(ShardId shard, uint32_t links) { return shard.value % links; }

/// The slices of a model, and over which connection each goes. Immutable.
struct DividedSlices {
  /// `index`: among the slices of that connection.
  struct Place {
    uint32_t link = 0;
    size_t index = 0;
  };
  DividedSlices() = default;
  DividedSlices(std::vector<Slice> slices, uint32_t links);

  std::vector<Slice> slices;
  std::vector<Place> places;  ///< of each slice
  uint32_t links = 1;
};

/// Cuts every shard into pieces of at most `elementsMax` (at least the layout's grain), near equal
/// within a shard, in arena order. A pure function.
std::vector<Slice> cutIntoSlices(const ShardPlan& plan, uint64_t elementsMax);

/// How many of these slices may be unanswered at once where `window` of `elementsMax` may: more of small
/// ones, so that a long way is not gone once for each few of them, but never more than 64, and never more
/// elements. A pure function.
uint32_t slicesInFlight(const std::vector<Slice>& slices, uint32_t window, uint64_t elementsMax);

}  // namespace psd
