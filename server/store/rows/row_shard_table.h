#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/types/row_ids.h"
#include "server/store/rows/row_gate.h"
#include "server/store/rows/row_gradient.h"
#include "server/store/rows/row_table.h"

namespace psd {

/// The part of one table in a row shard.
struct RowShardTable {
  /// Counters of row operations. Thread-safe.
  struct Counts {
    std::atomic<uint64_t> pulled{0};   ///< rows pulled
    std::atomic<uint64_t> unknown{0};  ///< of these, not touched by any push
    std::atomic<uint64_t> pushed{0};   ///< rows updated
    std::atomic<uint64_t> created{0};
    std::atomic<uint64_t> refused{0};      ///< rows that could not be created
    std::atomic<uint64_t> notAdmitted{0};  ///< gradients dropped because their rows were not admitted
    std::atomic<uint64_t> evicted{0};
    std::atomic<uint64_t> longestInsertNs{0};  ///< longest creation of one update's new rows
  };

  uint32_t index = 0;    ///< in ModelSpec::tables
  bool rowSteps = true;  ///< the optimizer counts updates per row instead of per shard
  std::unique_ptr<RowTable> rows;
  std::unique_ptr<RowGate> gate;
  std::unique_ptr<Counts> counts = std::make_unique<Counts>();
};

/// The table with this index in the model; null if there is none.
inline const RowShardTable* findTable(const std::vector<RowShardTable>& tables, uint32_t index) {
  const auto found = std::ranges::find(tables, index, &RowShardTable::index);
  return found == tables.end() ? nullptr : &*found;
}

/// Calls `visit(run, ids)` for each run with its ids.
template <class Visit>
void forEachRun(const RowIds& rows, Visit visit) {
  size_t begin = 0;
  for (const RowRun& run : rows.runs) {
    visit(run, rows.ids.subspan(begin, run.count));
    begin += run.count;
  }
}

/// The part's rows at these positions, in ascending order; all are rows of `tables`.
StagedRows rowsAt(const std::vector<RowShardTable>& tables, const StagedRows& part,
                  std::span<const size_t> places);

}  // namespace psd
