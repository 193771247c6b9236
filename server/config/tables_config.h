#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/object_reader.h"
#include "common/types/model_spec.h"
#include "server/store/rows/row_rules.h"

namespace psd {

/// How the daemon holds some of the model's embedding tables. A value type.
struct TableConfig {
  std::vector<std::string> match;  ///< globs over table names
  RowRules rules;                  ///< of each table, all row shards together
  bool rowSteps = true;            ///< optimizers count each row's own updates
};

/// Everything about embedding tables that the daemon is told. A value type.
struct TablesConfig {
  std::vector<TableConfig> tables;    ///< the first that matches a table's name counts
  std::optional<uint32_t> rowShards;  ///< of each group's tables; nothing: as many as threads
};

/// Reads `tables` and `row_shards`. Problems go to the reader.
TablesConfig readTables(ObjectReader& in);

/// For each table of the model how it is held. ErrorCode::invalidArgument, with the JSON path, when one of
/// `tables` matches none.
Result<std::vector<TableConfig>> assignTables(const ModelSpec& model, const TablesConfig& config);

}  // namespace psd
