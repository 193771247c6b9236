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

/// Fills a row shard of a store of `partition` with the rows of checkpoints, however many partitions and row
/// shards these were cut into: values always, optimizer state where the optimizer is of the same type. Where
/// the shard takes from several, it goes on from the highest of their numbers. Pushes are taken over from
/// checkpoints of the same partition alone. Blocks; before anybody else uses the shard. `notes`: what was not
/// taken over, a line each is added. ErrorCode::overloaded where the system has no memory for the rows.
Status restoreRows(Env& env, std::span<const PlacedCheckpoint> from, const Partition& partition,
                   RowShard& shard, std::vector<std::string>& notes);

/// `ranges`, end to end, as what a block of `count` holds; none: no push is known of any of it.
inline PushedRanges pushedOf(uint64_t count, std::vector<PushedRange> ranges) {
  return ranges.empty() ? PushedRanges(count, {}) : PushedRanges(std::move(ranges));
}

/// Writes a table of a checkpoint, by its index in the model; see exportTable().
Status writeTable(Env& env, const Checkpoint& checkpoint, uint32_t table, const std::string& to);

}  // namespace psd
