#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/rows/row_shard.h"

namespace psd {

/// Restores the rows of a row shard of a store of `partition` from checkpoints with any number of partitions
/// and row shards: always the values, and the optimizer state if the optimizer's type is the same. The shard
/// resumes from the highest of its sources' version numbers. Restores pushes only from checkpoints of the
/// same partition. Blocks; requires exclusive use of the shard. Appends to `notes` what was not restored, one
/// line each. ErrorCode::overloaded if there is no memory for the rows.
Status restoreRows(Env& env, std::span<const PlacedCheckpoint> from, const Partition& partition,
                   RowShard& shard, std::vector<std::string>& notes);

/// The pushes of a block of `count` elements from contiguous `ranges`; empty: none are known.
inline PushedRanges pushedOf(uint64_t count, std::vector<PushedRange> ranges) {
  return ranges.empty() ? PushedRanges(count, {}) : PushedRanges(std::move(ranges));
}

}  // namespace psd
