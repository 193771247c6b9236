#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/shard_plan.h"

namespace psd {

/// A piece of one shard, as a call carries it. In elements; `offset` is relative to the shard.
struct Slice {
  ShardId shard;
  uint64_t offset = 0;
  uint64_t count = 0;
  uint64_t arena = 0;  ///< its begin in the arena
  uint64_t total = 0;  ///< of the whole shard
  DType dtype = DType::f32;
  uint64_t nativeAt = 0;  ///< its begin in a native arena, in bytes; see ArenaValues

  bool operator==(const Slice&) const = default;
};

/// Which of a trainer's `links` connections carries a shard: all slices of a shard use the same one, in
/// order.
inline uint32_t linkOf(ShardId shard, uint32_t links) { return shard.value % links; }

/// The slices of a model, and the connection of each. Immutable.
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

/// Cuts every shard into pieces of at most `elementsMax` (at least the layout's grain), nearly equal within a
/// shard, in arena order. A pure function.
std::vector<Slice> cutIntoSlices(const ShardPlan& plan, uint64_t elementsMax);

/// Elements of the largest of these slices; 0: there are none.
uint64_t largestSlice(const std::vector<Slice>& slices);

/// How many of these slices may be unanswered at once if `window` slices of `elementsMax` may: more if they
/// are small, so that a long round trip is not paid for every few of them, but at most 64, and no more
/// elements in total. A pure function.
uint32_t slicesInFlight(const std::vector<Slice>& slices, uint32_t window, uint64_t elementsMax);

}  // namespace psd
