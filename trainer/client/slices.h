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

  bool operator==(const Slice&) const = default;
};

/// Cuts every shard into pieces of at most `elementsMax` (at least the layout's grain), near equal
/// within a shard, in arena order. A pure function.
std::vector<Slice> cutIntoSlices(const ShardPlan& plan, uint64_t elementsMax);

}  // namespace psd
