#pragma once

#include <span>
#include <vector>

#include "common/codec/row_codec.h"
#include "server/store/rows/row_shard.h"

namespace psd {

/// The shapes of runs that passed RowShard::check(), as codecs need them.
inline std::vector<RowBlock> rowBlocks(const RowShard& shard, std::span<const RowRun> runs) {
  std::vector<RowBlock> blocks;
  for (const RowRun& run : runs) blocks.push_back({run.count, shard.table(run.table)->dim()});
  return blocks;
}

}  // namespace psd
