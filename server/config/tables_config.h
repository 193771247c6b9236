#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config_reader.h"
#include "common/types/model_spec.h"
#include "server/store/rows/row_rules.h"

namespace psd {

/// How the daemon holds the embedding tables that an entry of `tables` matches. A value type.
struct TableConfig {
  std::vector<std::string> match;  ///< globs over table names
  RowRules rules;                  ///< of each table, all row shards together
  bool rowSteps = true;            ///< optimizers count each row's own updates
};

/// What the configuration says of embedding tables. A value type.
struct TablesConfig {
  std::vector<TableConfig> tables;    ///< the first that matches a table's name counts
  std::optional<uint32_t> rowShards;  ///< of each group's tables; nothing: one per thread
};

/// Reads the keys `tables` and `row_shards`.
TablesConfig readTables(ConfigReader& in);

/// The entry of each of the model's tables, or defaults. ErrorCode::invalidArgument, with the JSON path, when
/// one of `tables` matches none.
Result<std::vector<TableConfig>> assignTables(const ModelSpec& model, const TablesConfig& config);

/// Whether a slice of limits.slice_bytes can hold a row of each table.
Status checkRowsFit(const ModelSpec& model, uint64_t sliceBytes);

}  // namespace psd
