#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/rows/row_gate.h"

namespace psd {

/// Rows of one table out of a checkpoint's files.
struct SavedRows {
  std::vector<uint64_t> ids;
  std::vector<RowMeta> metas;
  std::vector<std::vector<float>> planes;  ///< as many as were asked for, each [rows, width]

  size_t size() const { return ids.size(); }
};

/// Calls `visit` with the rows that a row shard of a checkpoint has of a table, some thousand at a time by
/// the hashes of their ids: those of the checkpoint that are not in one that goes on from it, without those
/// that were evicted since. `planes`: names of what is read of each, see rowPlaneNames().
Status forEachRows(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table,
                   const std::vector<std::string>& planes,
                   const std::function<Status(SavedRows& rows)>& visit);

/// Takes over what a row shard of a checkpoint has counted of a table's rows that are not there.
Status restoreCounts(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table, RowGate& gate);

}  // namespace psd
