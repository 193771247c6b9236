#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/types/model_spec.h"
#include "trainer/task/batch.h"

namespace psd {

/// Tables of the same kind. Each has its own seed, independent of the trainer's --seed: the initial rows are
/// part of the model's signature, and `eval` need not know the seed of the training.
inline std::vector<TableSpec> tablesOf(const std::vector<std::string>& names, uint32_t dim,
                                       RowInitial initial) {
  std::vector<TableSpec> tables;
  for (const std::string& name : names) {
    tables.push_back({name, dim, initial});
    initial.seed++;
  }
  return tables;
}

/// Looks up the ids of a column in a table.
inline RowLookup lookUpColumn(const Batch& batch, std::string_view column, std::string name, uint32_t table) {
  const auto ids = batch.values<int64_t>(column);
  return {std::move(name), table, {ids.begin(), ids.end()}};
}

}  // namespace psd
