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
#include "server/store/rows/table_budget.h"

namespace psd {

/// Upper bound of the memory of a row shard besides its tables.
inline constexpr uint64_t kEmptyRowShardBytes = 8192;

/// Observer of rows that are about to change. Called with the shard's lock held.
class RowsObserver {
 public:
  virtual ~RowsObserver() = default;
  /// These rows are about to be updated, created or erased.
  virtual void beforeChange(const RowIds& rows) = 0;
};

/// Rows of one table that one RowTurnover::prepare() created.
struct CreatedRows {
  const RowShardTable* table = nullptr;
  std::vector<uint64_t> ids;
  uint64_t count = 0;  ///< number of distinct ids
};

/// A part of a step whose rows exist.
struct PreparedRows {
  StagedRows part;  ///< without the rows that were not admitted
  std::vector<CreatedRows> created;
  std::vector<CountedRun> counted;
  std::vector<uint64_t> countedIds;
  std::vector<RowRun> leftOut;      ///< number of dropped gradients of rows that were not admitted, per run
  std::vector<RowRun> evictedRuns;  ///< set by RowShard::update(), like evictedIds
  std::vector<uint64_t> evictedIds;

  RowSideChanges beside() const { return {{evictedRuns, evictedIds}, counted, countedIds}; }
};

/// Creation and eviction of the rows of a row shard: by pushes, under the rules of their tables (RowGate,
/// row_eviction.h), within their limits and limits.table_bytes. All methods except sweeps() require the
/// shard's lock.
class RowTurnover {
 public:
  /// `block`, which is the shard, and its `tables` must outlive this object.
  RowTurnover(const ParameterBlock& block, const std::vector<RowShardTable>& tables,
              std::shared_ptr<TableBudget> bytes)
      : block_(block), tables_(tables), bytes_(std::move(bytes)) {
    countBytes();
  }
  ~RowTurnover() { bytes_->change(counted_, 0); }
  RowTurnover(const RowTurnover&) = delete;
  RowTurnover& operator=(const RowTurnover&) = delete;

  /// Evicts the rows that are due under the rules of their tables before update `number`, except those in
  /// `spared`.
  void evictDue(uint64_t number, const RowIds& spared);
  /// Whether evictDue() may find rows. Thread-safe.
  bool sweeps() const;
  /// Prepares the part for the update `version`: removes the rows that their tables do not admit, and creates
  /// the other missing rows, if necessary in place of evicted rows, which are never rows of the part.
  /// ErrorCode::overloaded if a limit or the available memory does not allow all of them: then none is
  /// created. The growth of the indices may exceed limits.table_bytes.
  Result<PreparedRows> prepare(const StagedRows& part, Version version);
  /// Erases the rows that prepare() created, before any update of them; they are counted as refused.
  Status rollBack(const std::vector<CreatedRows>& created);
  /// Must be called before the update of a prepared part: counts its created and not admitted rows, notifies
  /// the observer, and fills in the evictions to log with the update.
  void commit(PreparedRows& prepared);
  /// Prepares the replay of update `version` of these rows: erases and counts what its log record lists, and
  /// creates the missing rows. Applies no rules and no limits, and records nothing.
  Status replay(const RowIds& rows, const RowSideChanges& beside, Version version);

  /// Recounts the memory of rows and filters, after these were restored.
  void countBytes();
  /// Maximum number of evicted rows kept for takeEvicted().
  static constexpr uint64_t kEvictedMax = uint64_t{1} << 20;
  /// The ids of rows evicted since the last call, one list per table of the shard; empty on the first call,
  /// which starts the recording, and if there were more than kEvictedMax.
  std::optional<std::vector<std::vector<uint64_t>>> takeEvicted();
  /// Sets the observer that is notified before rows change; null: none. It must outlive this object.
  void setObserver(RowsObserver* observer) { observer_ = observer; }

 private:
  /// Adopts the newest rules of the tables.
  void adoptRules();
  const RowShardTable& tableOf(const RowRun& run) const { return *findTable(tables_, run.table); }
  /// Sorted row numbers of the existing rows of the table.
  std::vector<uint32_t> numbersOf(const RowShardTable& table, const RowIds& rows) const;
  /// The missing rows, by table.
  std::vector<CreatedRows> missing(const RowIds& rows) const;
  /// Removes the rows that are not admitted from `wanted` and from the part.
  void select(std::vector<CreatedRows>& wanted, PreparedRows& prepared, Version version) const;
  /// Evicts rows where the tables of `wanted` would exceed their row limits.
  Status evictForLimit(const std::vector<CreatedRows>& wanted, const RowIds& spared, Version version);
  /// Reserves memory in limits.table_bytes for the rows of `wanted`, if necessary that of evicted rows, and
  /// for `filters` bytes.
  Status takeBytes(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared, Version version);
  /// Checks that the row limits of the tables allow the rows of `wanted`; may remove duplicate ids from it.
  static Status checkLimit(std::vector<CreatedRows>& wanted);
  /// Creates the rows of `wanted` and sets their counts; all or nothing.
  Status makeRows(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared, Version version);
  Status eraseCreated(const std::vector<CreatedRows>& created);
  /// Evicts rows; the log record of the next update lists them.
  Status evict(const RowShardTable& table, const std::vector<uint64_t>& ids);
  /// Erases the rows of `gone`; on failure, removes from `gone` those that still exist.
  Status erase(const RowShardTable& table, std::vector<uint64_t>& gone);
  /// Number of bytes by which the filters grow when these runs are counted.
  uint64_t filterBytesFor(std::span<const CountedRun> runs) const;
  /// Counts updates of missing rows for admission.
  void count(std::span<const CountedRun> runs, std::span<const uint64_t> ids);

  const ParameterBlock& block_;
  const std::vector<RowShardTable>& tables_;
  const std::shared_ptr<TableBudget> bytes_;  // shared by all row shards
  uint64_t counted_ = 0;                      // part of bytes_ that this shard has taken
  RowsObserver* observer_ = nullptr;
  std::vector<RowRun> evictedRuns_;  // since the last update, if there is a log
  std::vector<uint64_t> evictedIds_;
  std::optional<std::vector<std::vector<uint64_t>>> pendingEvicted_;  // for takeEvicted()
  uint64_t pendingEvictedCount_ = 0;                                  // in pendingEvicted_
};

}  // namespace psd
