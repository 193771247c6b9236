#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/row_hash.h"
#include "common/types/row_initial.h"
#include "server/store/rows/epochs.h"
#include "server/store/rows/row_index.h"
#include "server/store/rows/row_meta.h"
#include "server/store/rows/row_numbers.h"
#include "server/store/rows/row_storage.h"

namespace psd {

/// Limits of a table in one shard. A value type.
struct RowLimits {
  uint64_t rowsMax = kNoRow;  ///< at most 2^32 − 1
};

/// Size of a table in one shard. A value type.
struct RowTableSize {
  uint64_t rows = 0;
  uint64_t bytes = 0;       ///< of rows, slots and meta words, including erased rows until reclaimed
  uint64_t indexBytes = 0;  ///< of the index, and of the table without rows
  uint64_t places = 0;      ///< capacity of the index in entries
  double load = 0;          ///< used fraction of the capacity, 0 … 1
  uint64_t splits = 0;      ///< number of splits of index segments so far
};

/// The rows of one embedding table in one shard: an index from ids, any 64-bit numbers, to row numbers; a
/// meta word per row; and values and optimizer slots in a RowStorage.
///
/// A missing id has the values of RowInitial: reading never creates a row. Thread-safety:
/// - gather(), find(), missing(), apply(), meta(), readPlane() and size() may be called by any thread at any
///   time, concurrently with each other and with the writer. They take no lock. Calls of apply() race element
///   by element (Hogwild!), also with gather(); under the shard's lock no update is lost.
/// - applyGuarded(), next() and nextWhere() are for any thread that holds a Guard of epochs(), and for the
///   writer.
/// - insertMissing(), erase(), restore(), reserve(), setOptimizer() and setLimits() are for the writer: one
///   at a time, under the caller's lock. setOptimizer(), and restore() of existing rows, require that no
///   apply() runs concurrently.
///
/// Spans of floats hold whole rows, one per id, in the order of the ids. Empty spans are allowed everywhere.
class RowTable {
 public:
  struct Options {
    RowInitial initial;
    HashRange range;  ///< of the shard; callers pass no ids with other hashes
    RowLimits limits;
  };

  /// Upper bound of the memory of an empty table, including its storage, gate and counters.
  static constexpr uint64_t kEmptyBytes = 2048;

  /// Creates an empty table. `epochs` is shared by all tables that one call may access.
  RowTable(Options options, std::unique_ptr<RowStorage> storage, std::shared_ptr<Epochs> epochs);

  uint32_t dim() const { return storage_->layout().dim(); }
  const Options& options() const { return options_; }
  const RowLayout& layout() const { return storage_->layout(); }
  const Optimizer& optimizer() const { return storage_->optimizer(); }
  /// Replaces the optimizer's hyperparameters; `optimizer` must have the same slots.
  void setOptimizer(const Optimizer& optimizer) { storage_->setOptimizer(optimizer); }
  /// Sets the limits. Existing rows remain, even beyond the limits.
  void setLimits(const RowLimits& limits) { options_.limits = limits; }
  /// Memory that `rows` new rows need, excluding index growth after the first row. Writer only.
  uint64_t bytesFor(uint64_t rows) const {
    const bool first = rows > 0 && index_.segments() == 0;
    return numbers_.bytesFor(rows) + (first ? kFirstRowBytes : 0);
  }
  RowTableSize size() const;
  /// RowStorage::state(). Values read or updates applied are valid only if this is ok afterwards.
  Status state() const { return storage_->state(); }

  /// out = the values of the rows, or their initial values. Returns the number of existing rows.
  uint64_t gather(std::span<const uint64_t> ids, std::span<float> out) const;
  /// rows = the row numbers, kNoRow for missing ids. They remain valid while the caller holds a Guard of
  /// epochs() that it acquired before the call, or the writer's lock. Returns the number of existing rows.
  uint64_t find(std::span<const uint64_t> ids, std::span<uint32_t> rows) const;

  /// The ids without a row, in the given order; a repeated id may occur several times.
  std::vector<uint64_t> missing(std::span<const uint64_t> ids) const;

  /// Checks that the limits allow `rows` more rows. Writer only.
  Status checkLimit(uint64_t rows) const;
  /// Creates rows for the missing ids, with initial values and slots and meta word {version, 0}; ids may
  /// repeat. Returns the number of rows created. All or nothing: ErrorCode::overloaded, naming the limit, if
  /// not all fit.
  Result<uint64_t> insertMissing(std::span<const uint64_t> ids, Version version);
  /// insertMissing() for rows from a log or a checkpoint: they were admitted once, so the limits do not
  /// apply.
  Result<uint64_t> insertRecorded(std::span<const uint64_t> ids, Version version) {
    return insert(missing(ids), version);
  }
  /// One optimizer step per id, in order, with its gradient; a repeated id gets one step per occurrence.
  /// Missing ids are skipped. `rowSteps`: update.number is replaced by the row's own update count, from 1
  /// (update.before is then 0). Sets each row's version to `version` and increments its count. Returns the
  /// number of existing rows; appends the positions of missing ids to `missed`, unless it is null.
  uint64_t apply(std::span<const uint64_t> ids, std::span<const float> gradients, const RowChange& change,
                 const UpdateScalars& update, bool rowSteps, Version version,
                 std::vector<size_t>* missed = nullptr) {
    const Epochs::Guard guard(*epochs_);
    return applyGuarded(ids, gradients, change, update, rowSteps, version, missed);
  }
  /// apply() for a caller that holds a Guard of epochs() or the writer's lock.
  uint64_t applyGuarded(std::span<const uint64_t> ids, std::span<const float> gradients,
                        const RowChange& change, const UpdateScalars& update, bool rowSteps, Version version,
                        std::vector<size_t>* missed = nullptr);
  /// Erases the rows of those ids that exist; ids may repeat. Returns the number of erased rows;
  /// ErrorCode::overloaded, with some of them erased, if the system is out of memory.
  Result<uint64_t> erase(std::span<const uint64_t> ids);
  /// Frees the memory of erased rows that no guard can access any more.
  void reclaim() { numbers_.reclaim(); }
  /// Makes memory for a total of `rows` rows resident, so that creating them causes no page faults.
  /// ErrorCode::overloaded like insertMissing().
  Status reserve(uint64_t rows);

  RowMeta meta(uint32_t row) const { return numbers_.meta(row); }
  /// Overwrites a row's meta word.
  void setMeta(uint32_t row, RowMeta meta) { numbers_.setMeta(row, meta); }
  /// Reads a plane of these rows, row by row; see RowLayout.
  void readPlane(uint32_t plane, std::span<const uint32_t> rows, std::span<float> out) const {
    storage_->readPlane(plane, rows, out);
  }

  /// Iterates over all rows in the order of the hashes of their ids, a few thousand at a time: `out` = the
  /// next rows in that order; advances `cursor`. Empty only at the end. A cursor remains valid across changes
  /// between calls: rows that exist throughout are returned exactly once.
  void next(RowCursor& cursor, std::vector<RowEntry>& out) const { index_.next(cursor, out); }
  /// Like next(), restricted to rows for which `keep` is true; `out` may be empty before the end.
  void next(RowCursor& cursor, std::vector<RowEntry>& out, const RowFilter& keep) const {
    index_.next(cursor, out, keep);
  }
  /// Like next(), restricted to rows whose meta word satisfies `wanted`; `out` may be empty before the end.
  /// Prefetches the meta words.
  void nextWhere(RowCursor& cursor, std::vector<RowEntry>& out,
                 const std::function<bool(RowMeta)>& wanted) const;
  /// Restores saved rows: ids[i] with metas[i] and planes[p][i · width …]; creates or overwrites them. Ids
  /// must not repeat. Fails like insertRecorded().
  Status restore(std::span<const uint64_t> ids, std::span<const RowMeta> metas,
                 std::span<const std::span<const float>> planes);

  Epochs& epochs() const { return *epochs_; }

 private:
  /// Memory of the first row in addition to its own bytes: a segment of the index, a page of rows, and a page
  /// of meta words.
  static constexpr uint64_t kFirstRowBytes = sizeof(RowSegment) + 2 * 4096;

  /// Looks up all ids and calls use(first, rows, next) like RowIndex::pipeline(), with the storage's
  /// preferred batch size.
  template <class Use>
  void forEachBatch(std::span<const uint64_t> ids, const Use& use) const;
  /// Creates rows for ids that do not exist and may repeat. Returns the number of rows created; all or
  /// nothing.
  Result<uint64_t> insert(std::span<const uint64_t> wanted, Version version);
  /// Creates rows for some ids, and appends the new ones to `made`. False if the index cannot hold all of
  /// them or the storage has failed. `rows`: scratch space of the same size.
  bool insertBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows, Version version,
                   std::vector<uint64_t>& made);

  Options options_;
  const std::shared_ptr<Epochs> epochs_;
  const std::unique_ptr<RowStorage> storage_;
  RowIndex index_;
  RowNumbers numbers_;
};

}  // namespace psd
