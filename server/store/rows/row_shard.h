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
#include "server/store/rows/table_bytes.h"

namespace psd {

/// The rows of some tables, those of one parameter group, whose ids' hashes lie in a range. Its range() is in
/// units of kRowHashUnits. Thread-safe as each member says; what RowTable says of its operations holds here.
class RowShard final : public ParameterBlock {
 public:
  using Table = RowShardTable;

  /// `tables` are in the order of their indices. `device`: whose memory they are in.
  RowShard(ShardRange range, size_t device, const Optimizer& optimizer, std::vector<Table> tables,
           std::shared_ptr<TableBytes> bytes)
      : ParameterBlock(range, device, nullptr),
        optimizer_(optimizer),
        tables_(std::move(tables)),
        turnover_(*this, tables_, std::move(bytes)) {}

  const Optimizer& optimizer() const override { return optimizer_; }
  /// Takes over the numbers of `optimizer`, which has the slots of this shard's. Only while no update is
  /// under way.
  void setOptimizer(const Optimizer& optimizer);

  /// The hashes of the ids of a range in units of kRowHashUnits.
  static HashRange hashesOf(const ShardRange& range) {
    return {range.begin << 32, ((range.begin + range.count) << 32) - 1};
  }
  HashRange hashes() const { return hashesOf(range()); }
  const std::vector<Table>& tables() const { return tables_; }
  /// The table with that index in the model; null: the shard has none of its rows.
  RowTable* table(uint32_t index) const {
    const Table* const of = find(index);
    return of ? of->rows.get() : nullptr;
  }
  /// The rules of a table here, from the next update on; nothing where it has none of the table's rows.
  /// Thread-safe.
  void setRules(uint32_t index, const RowRules& rules) {
    if (const Table* const of = find(index)) of->gate->setRules(rules);
  }
  /// All tables' together.
  RowTableSize size() const;
  /// Ok, or why the device can do nothing any more. Of what was gathered or applied nothing counts unless
  /// this is ok afterwards.
  Status state() const;

  /// Whether all of these rows may be asked for here: the runs are of tables of the shard, they name as many
  /// ids as there are, and the ids' hashes lie in the range. ErrorCode::badSlice.
  Status check(const RowIds& rows) const;
  /// Whether what the log says beside an update names tables and ids of this shard. ErrorCode::badSlice.
  Status checkBeside(const RowsBeside& beside) const;
  /// Values of these rows, after check().
  uint64_t valueCount(std::span<const RowRun> runs) const;

  /// out = the rows' values, row after row, after check(). Gives how many of them some push has touched; the
  /// others have the values that they begin with. Creates nothing, takes no lock.
  uint64_t gather(const RowIds& rows, std::span<float> out) const;
  /// Whether some of the rows have not been touched by any push.
  bool lacks(const RowIds& rows) const;
  /// Which rows come into being and which are taken out.
  RowTurnover& turnover() { return turnover_; }
  /// Makes one update of what was prepared, with the numbers of `update`; the rows are then of `version`.
  /// Sets what has to be written down beside it: everything since the update before. Only with the lock held
  /// since RowTurnover::prepare(), or where nobody else makes updates. Fails where state() does.
  Status update(PreparedRows& prepared, const RowChange& change, const UpdateScalars& update,
                Version version);
  /// One optimizer step for each of the rows, one after the other, with row after row of `gradients`, with
  /// the numbers of `update`; the rows are then of the version that is there. May race with others element by
  /// element. Gives which rows, by their places, are not there and were passed over.
  std::vector<size_t> applyRacing(const RowIds& rows, std::span<const float> gradients,
                                  const RowChange& change, const UpdateScalars& update);

  /// Makes update `update.number` again as the log has it, see RowTurnover::repeat(): the result
  /// has the same rows and counts whatever the rules and limits of the tables are here. Only with the lock
  /// held, or if there is no other writer.
  Status repeat(const StagedRows& part, const RowsBeside& beside, const UpdateScalars& update);

  /// Prepares the part and makes the update number `update.number` of it. Fails as RowTurnover::prepare(),
  /// before any row is updated. Only with the lock held.
  Status update(const StagedRows& part, const RowChange& change, const UpdateScalars& update);
  /// The part's rows whose ids' hashes lie in the ranges, which are in units of kRowHashUnits from the
  /// shard's begin.
  StagedRows rowsIn(const StagedRows& part, const std::vector<PushedRange>& ranges) const;
  /// The part's rows at these places, rising.
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
