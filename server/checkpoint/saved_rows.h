#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/rows/row_gate.h"

namespace psd {

/// Rows of one table, read from a checkpoint's files.
struct SavedRows {
  std::vector<uint64_t> ids;
  std::vector<RowMeta> metas;
  std::vector<std::vector<float>> planes;  ///< those requested, each [rows, width]

  size_t size() const { return ids.size(); }
};

/// Calls `visit` with the rows of a table in a row shard of a checkpoint, in batches of a few thousand,
/// ordered by id hash. Merges the checkpoint with its bases: newer rows win, evicted rows are omitted.
/// `planes`: names of the planes to read, see rowPlaneNames().
Status forEachRows(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table,
                   const std::vector<std::string>& planes,
                   const std::function<Status(SavedRows& rows)>& visit);

/// Restores the admission counts that a row shard of a checkpoint has for ids without a row.
Status restoreCounts(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table, RowGate& gate);

}  // namespace psd
