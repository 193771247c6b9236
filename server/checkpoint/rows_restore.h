#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/rows/row_shard.h"

namespace psd {

/// Fills a row shard with a checkpoint's rows, into however many row shards these were cut: values always,
/// optimizer state where the optimizer is of the same type. Where the shard takes from several, it goes on
/// from the highest of their numbers. Blocks; before anybody else uses the shard. `notes`: what was not taken
/// over, a line each is added. ErrorCode::overloaded where the system has no memory for the rows.
Status restoreRows(Env& env, const Checkpoint& checkpoint, RowShard& shard, std::vector<std::string>& notes);

/// Writes a table of a checkpoint, by its index in the model; see exportTable().
Status writeTable(Env& env, const Checkpoint& checkpoint, uint32_t table, const std::string& to);

}  // namespace psd
