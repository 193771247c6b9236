#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/row_ids.h"
#include "server/store/parameter_block.h"
#include "server/store/rows/row_gradient.h"
#include "server/store/rows/row_shard_table.h"
#include "server/store/rows/table_bytes.h"

namespace psd {

/// Upper bound of what a row shard takes beside its tables.
inline constexpr uint64_t kEmptyRowShardBytes = 8192;

/// Who must know what rows are about to change. Its calls come with the shard's lock held.
class RowsObserver {
 public:
  virtual ~RowsObserver() = default;
  /// These rows are about to be updated, created or taken out.
  virtual void beforeChange(const RowIds& rows) = 0;
};

/// Rows of one table that one RowTurnover::prepare() made.
struct CreatedRows {
  const RowShardTable* table = nullptr;
  std::vector<uint64_t> ids;
  uint64_t count = 0;  ///< of different ids
};

/// A part of a step whose rows are there.
struct PreparedRows {
  StagedRows part;  ///< without the rows that were not admitted
  std::vector<CreatedRows> created;
  std::vector<CountedRun> counted;
  std::vector<uint64_t> countedIds;
  std::vector<RowRun> leftOut;      ///< how many gradients are of rows that were not admitted, by table
  std::vector<RowRun> evictedRuns;  ///< set by RowShard::update(), as the next
  std::vector<uint64_t> evictedIds;

  RowsBeside beside() const { return {{evictedRuns, evictedIds}, counted, countedIds}; }
};

/// Which rows of a row shard come into being and which are taken out: by pushes, by the rules of their
/// tables (RowGate, row_eviction.h), within their limits and limits.table_bytes. Only with the shard's lock
/// held, but for sweeps().
class RowTurnover {
 public:
  /// `block`, the shard, and its `tables` outlive this.
  RowTurnover(const ParameterBlock& block, const std::vector<RowShardTable>& tables,
              std::shared_ptr<TableBytes> bytes)
      : block_(block), tables_(tables), bytes_(std::move(bytes)) {
    countBytes();
  }
  ~RowTurnover() { bytes_->change(counted_, 0); }
  RowTurnover(const RowTurnover&) = delete;
  RowTurnover& operator=(const RowTurnover&) = delete;

  /// Takes out the rows that the rules of their tables say are due before update `number`, but for those in
  /// `spared`.
  void evictDue(uint64_t number, const RowIds& spared);
  /// Whether evictDue() may find anything. Thread-safe.
  bool sweeps() const;
  /// Makes the part ready for the update `version`: leaves out what its tables do not admit, and creates the
  /// other rows that are not there, where need be in place of some that are evicted, which are none of the
  /// part's. ErrorCode::overloaded where a limit or memory forbids some of them: then none is created.
  /// limits.table_bytes may be passed by what the indices grow by.
  Result<PreparedRows> prepare(const StagedRows& part, Version version);
  /// Takes out what prepare() made, while nothing has updated it; it counts as refused.
  Status takeBack(const std::vector<CreatedRows>& created);
  /// What was prepared is about to be updated: counts what was created and what was not admitted, tells the
  /// observer, and sets what has to be written down beside the update.
  void commit(PreparedRows& prepared);
  /// Prepares update `version` of these rows as the log has it: takes out and counts what is recorded
  /// beside the update, and creates those of its rows that are not there. Follows no rule, keeps to no limit
  /// and records nothing.
  Status repeat(const RowIds& rows, const RowsBeside& beside, Version version);

  /// Counts the memory of rows and filters, after they were restored.
  void countBytes();
  /// Evicted rows that are remembered for takeEvicted().
  static constexpr uint64_t kEvictedMax = uint64_t{1} << 20;
  /// The ids of rows that were evicted since the last call, by table in the order of the shard's; nothing
  /// where there was none, or they are more than kEvictedMax. They are remembered from the first call on.
  std::optional<std::vector<std::vector<uint64_t>>> takeEvicted();
  /// Who is told before rows change; null: nobody. It outlives this.
  void setObserver(RowsObserver* observer) { observer_ = observer; }

 private:
  /// Goes over to the tables' newest rules.
  void followRules();
  const RowShardTable& tableOf(const RowRun& run) const { return *findTable(tables_, run.table); }
  /// Row numbers of those of the rows that are there and of the table, rising.
  std::vector<uint32_t> numbersOf(const RowShardTable& table, const RowIds& rows) const;
  /// By table, the rows that are not there.
  std::vector<CreatedRows> missing(const RowIds& rows) const;
  /// Leaves the rows in `wanted` that are admitted, and the others out of the part.
  void select(std::vector<CreatedRows>& wanted, PreparedRows& prepared, Version version) const;
  /// Evicts rows where the tables of `wanted` have no room for it.
  Status makeRoom(const std::vector<CreatedRows>& wanted, const RowIds& spared, Version version);
  /// Takes room in limits.table_bytes for the rows of `wanted`, which may be evicted rows' room, and for
  /// `filters` bytes.
  Status takeBytes(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared, Version version);
  /// Whether the tables have room for the rows of `wanted`, of each of which it may leave one.
  static Status checkRoom(std::vector<CreatedRows>& wanted);
  /// Makes the rows of `wanted` and sets their counts; all or none.
  Status makeRows(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared, Version version);
  Status takeOut(const std::vector<CreatedRows>& created);
  /// Takes rows out by a rule; the record of the next update lists them.
  Status evict(const RowShardTable& table, const std::vector<uint64_t>& ids);
  /// Takes out the rows of `gone`, and leaves in it those that are out.
  Status erase(const RowShardTable& table, std::vector<uint64_t>& gone);
  /// Bytes that the filters grow by once these runs are counted.
  uint64_t filterBytesFor(std::span<const CountedRun> runs) const;
  /// Counts updates of rows that are not there for admission.
  void count(std::span<const CountedRun> runs, std::span<const uint64_t> ids);

  const ParameterBlock& block_;
  const std::vector<RowShardTable>& tables_;
  const std::shared_ptr<TableBytes> bytes_;  // of all row shards
  uint64_t counted_ = 0;                     // there, of this shard
  RowsObserver* observer_ = nullptr;
  std::vector<RowRun> evictedRuns_;  // since the last update, where there is a log
  std::vector<uint64_t> evictedIds_;
  std::optional<std::vector<std::vector<uint64_t>>> taken_;  // for takeEvicted()
  uint64_t takenCount_ = 0;                                  // in taken_
};

}  // namespace psd
