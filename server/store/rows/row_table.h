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

/// How much a table may hold in one shard. A value type.
struct RowLimits {
  uint64_t rowsMax = kNoRow;  ///< at most 2^32 − 1
};

/// How much a table holds in one shard. A value type.
struct RowTableSize {
  uint64_t rows = 0;
  uint64_t bytes = 0;       ///< of rows, slots and meta words, those of erased rows included until given back
  uint64_t indexBytes = 0;  ///< of the index, and what a table takes without rows
  uint64_t places = 0;      ///< for entries in the index
  double load = 0;          ///< of these in use, 0 … 1
  uint64_t splits = 0;      ///< of the index's segments so far
};

/// The rows of one embedding table in one shard: an index from ids, any 64-bit numbers, to row numbers; a
/// meta word per row; and values and optimizer slots in a RowStorage.
///
/// An id that is not there has the values of RowInitial: reading never creates a row. Thread-safe in part:
/// - gather(), find(), missing(), apply(), meta(), readPlane() and size() may be called by any thread at any
///   time, beside each other and beside the writer. They take no lock. Calls of apply() race element by
///   element (Hogwild!), and with gather(); under the shard's lock nothing is lost.
/// - applyGuarded(), next() and nextWhere() are for any thread that holds a Guard of epochs(), and for the
///   writer.
/// - insertMissing(), erase(), restore(), reserve(), setOptimizer() and setLimits() are the writer's: one at
/// a
///   time, under the caller's lock. setOptimizer() and restore() of rows that are there want no apply()
///   beside them.
/// Spans of floats hold whole rows, one per id, in the order of the ids. Empty spans are allowed everywhere.
class RowTable {
 public:
  struct Options {
    RowInitial initial;
    HashRange range;  ///< of the shard; ids of other hashes are not given
    RowLimits limits;
  };

  /// Upper bound of what a table takes without rows, with its storage, its gate and its counts.
  static constexpr uint64_t kEmptyBytes = 2048;

  /// A table without rows. `epochs` is shared by the tables that one call may visit.
  RowTable(Options options, std::unique_ptr<RowStorage> storage, std::shared_ptr<Epochs> epochs);

  uint32_t dim() const { return storage_->layout().dim(); }
  const Options& options() const { return options_; }
  const RowLayout& layout() const { return storage_->layout(); }
  const Optimizer& optimizer() const { return storage_->optimizer(); }
  /// Takes over the numbers of `optimizer`, which has the slots of this table's.
  void setOptimizer(const Optimizer& optimizer) { storage_->setOptimizer(optimizer); }
  /// What is there stays, even if it is more.
  void setLimits(const RowLimits& limits) { options_.limits = limits; }
  /// Memory that `rows` new rows take, without what the index grows by once the table has a row. The
  /// writer's.
  uint64_t bytesFor(uint64_t rows) const {
    const bool first = rows > 0 && index_.segments() == 0;
    return numbers_.bytesFor(rows) + (first ? kFirstRowBytes : 0);
  }
  RowTableSize size() const;
  /// RowStorage::state(). Of what was gathered, applied or read as a plane nothing counts unless this is ok
  /// afterwards.
  Status state() const { return storage_->state(); }

  /// out = the values of the rows, or their initial values. Returns how many are there.
  uint64_t gather(std::span<const uint64_t> ids, std::span<float> out) const;
  /// rows = the row numbers, kNoRow for what is not there. They stay those of the ids while the caller holds
  /// a Guard of epochs() from before the call, or the writer's lock. Returns how many are there.
  uint64_t find(std::span<const uint64_t> ids, std::span<uint32_t> rows) const;

  /// The ids of which there is no row, in the order given; an id that repeats may come several times.
  std::vector<uint64_t> missing(std::span<const uint64_t> ids) const;

  /// Whether the limits leave room for so many rows more. The writer's.
  Status checkRoom(uint64_t rows) const;
  /// Makes rows, with initial values and slots and meta word {version, 0}, of the ids that are not there; ids
  /// may repeat. Returns how many it made. All or none: ErrorCode::overloaded, naming the limit, when not all
  /// fit.
  Result<uint64_t> insertMissing(std::span<const uint64_t> ids, Version version);
  /// insertMissing() of rows that a log or a checkpoint has: they were admitted once, so the limits here do
  /// not apply.
  Result<uint64_t> insertRecorded(std::span<const uint64_t> ids, Version version) {
    return insert(missing(ids), version);
  }
  /// One optimizer step per id, in order, with its gradient; an id that comes twice has two steps, the second
  /// after the first. Ids that are not there are passed over. `rowSteps`: update.number is the row's own
  /// count of updates, from 1 (update.before is 0 then); else it is what the caller says. Each row's meta
  /// word gets `version` and one more update. Returns how many ids are there; to `missed`, unless it is null,
  /// the places in `ids` of the others are appended.
  uint64_t apply(std::span<const uint64_t> ids, std::span<const float> gradients, const RowChange& change,
                 const UpdateScalars& update, bool rowSteps, Version version,
                 std::vector<size_t>* missed = nullptr) {
    const Epochs::Guard guard(*epochs_);
    return applyGuarded(ids, gradients, change, update, rowSteps, version, missed);
  }
  /// apply() by who holds a Guard of epochs(), or the writer's lock.
  uint64_t applyGuarded(std::span<const uint64_t> ids, std::span<const float> gradients,
                        const RowChange& change, const UpdateScalars& update, bool rowSteps, Version version,
                        std::vector<size_t>* missed = nullptr);
  /// Takes out the rows that are there of these ids, which may repeat. Returns how many they were;
  /// ErrorCode::overloaded, with some taken out, when the system has no memory for it.
  Result<uint64_t> erase(std::span<const uint64_t> ids);
  /// Gives memory of erased rows back that nobody looks at any more.
  void reclaim() { numbers_.reclaim(); }
  /// Makes memory for `rows` rows in all resident, so that making them takes no page faults.
  /// ErrorCode::overloaded as insertMissing().
  Status reserve(uint64_t rows);

  RowMeta meta(uint32_t row) const { return numbers_.meta(row); }
  /// Overwrites a row's meta word.
  void setMeta(uint32_t row, RowMeta meta) { numbers_.setMeta(row, meta); }
  /// A plane of these rows, as RowLayout names it, row by row.
  void readPlane(uint32_t plane, std::span<const uint32_t> rows, std::span<float> out) const {
    storage_->readPlane(plane, rows, out);
  }

  /// Goes through all rows in the order of the hashes of their ids, a few thousand at a time: `out` = the
  /// next rows, in that order, and `cursor` is behind them. Empty at the end alone. A cursor stays good
  /// whatever happens between two calls: what is there all the time comes exactly once.
  void next(RowCursor& cursor, std::vector<RowEntry>& out) const { index_.next(cursor, out); }
  /// Goes through the rows as next() does, and gives those for which `keep` is true: maybe none before the
  /// end.
  void next(RowCursor& cursor, std::vector<RowEntry>& out, const RowFilter& keep) const {
    index_.next(cursor, out, keep);
  }
  /// Goes through the rows as next() does, and gives those whose meta word `wanted` is true for: maybe none
  /// before the end. Memory is asked for the meta words ahead.
  void nextWhere(RowCursor& cursor, std::vector<RowEntry>& out,
                 const std::function<bool(RowMeta)>& wanted) const;
  /// Rows as they were read: ids[i] with metas[i] and planes[p][i · width …], which are made or overwritten.
  /// Ids may not repeat. Fails as insertRecorded().
  Status restore(std::span<const uint64_t> ids, std::span<const RowMeta> metas,
                 std::span<const std::span<const float>> planes);

  Epochs& epochs() const { return *epochs_; }

 private:
  /// What the first row takes beside its own bytes: a segment of the index, a page of rows, one of meta
  /// words.
  static constexpr uint64_t kFirstRowBytes = sizeof(RowSegment) + 2 * 4096;

  /// Looks all ids up, and calls use(first, rows, next) as RowIndex::pipeline() does, with as many rows at a
  /// time as the storage wants.
  template <class Use>
  void eachBatch(std::span<const uint64_t> ids, const Use& use) const;
  /// Makes rows of ids that are not there, and may repeat. Returns how many it made; all or none.
  Result<uint64_t> insert(std::span<const uint64_t> wanted, Version version);
  /// Makes rows of some ids, and appends those that were not there to `made`. False when the index has no
  /// room for all of them, or the storage has failed. `rows`: room for as many row numbers.
  bool insertBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows, Version version,
                   std::vector<uint64_t>& made);

  Options options_;
  const std::shared_ptr<Epochs> epochs_;
  const std::unique_ptr<RowStorage> storage_;
  RowIndex index_;
  RowNumbers numbers_;
};

}  // namespace psd
