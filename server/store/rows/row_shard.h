#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/row_ids.h"
#include "server/store/parameter_block.h"
#include "server/store/rows/row_gradient.h"
#include "server/store/rows/row_shard_table.h"
#include "server/store/rows/row_table.h"
#include "server/store/rows/row_turnover.h"
#include "server/store/rows/table_budget.h"

namespace psd {

/// The rows, with hashes of their ids in one range, of the tables of one parameter group. range() is in units
/// of kRowHashUnits. Thread-safety is documented per member; the rules of RowTable apply to its operations.
class RowShard final : public ParameterBlock {
 public:
  using Table = RowShardTable;

  /// `tables` are sorted by index. `device`: the backend whose memory holds them.
  RowShard(ShardRange range, size_t device, const Optimizer& optimizer, std::vector<Table> tables,
           std::shared_ptr<TableBudget> bytes)
      : ParameterBlock(range, device, nullptr),
        optimizer_(optimizer),
        tables_(std::move(tables)),
        turnover_(*this, tables_, std::move(bytes)) {}

  const Optimizer& optimizer() const override { return optimizer_; }
  /// Replaces the optimizer's hyperparameters; `optimizer` must have the same slots. No update may be in
  /// progress.
  void setOptimizer(const Optimizer& optimizer);

  /// Converts a range in units of kRowHashUnits to a range of hashes.
  static HashRange hashesOf(const ShardRange& range) {
    return {range.begin << 32, ((range.begin + range.count) << 32) - 1};
  }
  HashRange hashes() const { return hashesOf(range()); }
  const std::vector<Table>& tables() const { return tables_; }
  /// The table with this index in the model; null if the shard has none of its rows.
  RowTable* table(uint32_t index) const {
    const Table* const of = find(index);
    return of ? of->rows.get() : nullptr;
  }
  /// Sets the rules of a table from the next update on; no effect if the shard has none of its rows.
  /// Thread-safe.
  void setRules(uint32_t index, const RowRules& rules) {
    if (const Table* const of = find(index)) of->gate->setRules(rules);
  }
  /// Total over all tables.
  RowTableSize size() const;
  /// Ok, or why the device has failed permanently. Values gathered or updates applied are valid only if this
  /// is ok afterwards.
  Status state() const;

  /// Checks that the rows belong here: the runs are of tables of the shard, their counts add up to the number
  /// of ids, and the ids' hashes are in the range. ErrorCode::badSlice.
  Status check(const RowIds& rows) const;
  /// Checks that the evictions and counts in a log record name tables and ids of this shard.
  /// ErrorCode::badSlice.
  Status checkSideChanges(const RowSideChanges& beside) const;
  /// Number of values of these rows; requires check().
  uint64_t valueCount(std::span<const RowRun> runs) const;

  /// out = the rows' values, row after row; requires check(). Returns the number of rows that a push has
  /// touched; the others have their initial values. Creates no rows and takes no lock.
  uint64_t gather(const RowIds& rows, std::span<float> out) const;
  /// Whether any of the rows has not been touched by a push.
  bool lacks(const RowIds& rows) const;
  /// Creation and eviction of the rows.
  RowTurnover& turnover() { return turnover_; }
  /// Applies the prepared rows as one update with the scalars of `update`; sets the rows' version to
  /// `version`. Fills in the evictions since the previous update that must be logged with it. The lock must
  /// have been held since RowTurnover::prepare(), or there must be no other writer. Fails if state() does.
  Status update(PreparedRows& prepared, const RowChange& change, const UpdateScalars& update,
                Version version);
  /// One optimizer step per row in order, with the corresponding row of `gradients` and the scalars of
  /// `update`; sets the rows' version to the current version. May race with others element by element.
  /// Returns the positions of the rows that do not exist, which are skipped.
  std::vector<size_t> applyRacing(const RowIds& rows, std::span<const float> gradients,
                                  const RowChange& change, const UpdateScalars& update);

  /// Replays update `update.number` from the log; see RowTurnover::replay(). The resulting rows and counts do
  /// not depend on the rules and limits of the tables here. Requires the lock, or no other writer.
  Status replay(const StagedRows& part, const RowSideChanges& beside, const UpdateScalars& update);

  /// Prepares the part and applies it as update `update.number`. Fails like RowTurnover::prepare(), before
  /// any row is updated. The lock must be held.
  Status update(const StagedRows& part, const RowChange& change, const UpdateScalars& update);
  /// The part's rows with hashes of their ids in the ranges, which are in units of kRowHashUnits relative to
  /// the start of the shard.
  StagedRows rowsIn(const StagedRows& part, const std::vector<PushedRange>& ranges) const;
  /// The part's rows at these positions, in ascending order.
  StagedRows rowsAt(const StagedRows& part, std::span<const size_t> places) const {
    return psd::rowsAt(tables_, part, places);
  }

 private:
  const Table* find(uint32_t index) const { return findTable(tables_, index); }
  void apply(const RowIds& rows, std::span<const float> gradients, const RowChange& change,
             const UpdateScalars& update, Version version, std::vector<size_t>* missed);

  Optimizer optimizer_;
  const std::vector<Table> tables_;
  RowTurnover turnover_;
};

}  // namespace psd
