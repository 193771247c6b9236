#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/row_ids.h"
#include "server/store/parameter_block.h"
#include "server/store/rows/row_gate.h"
#include "server/store/rows/row_gradient.h"
#include "server/store/rows/row_table.h"
#include "server/store/rows/table_bytes.h"

namespace psd {

/// Who must know what rows are about to change. Its calls come with the shard's lock held.
class RowsObserver {
 public:
  virtual ~RowsObserver() = default;
  /// These rows are about to be updated, created or taken out.
  virtual void beforeChange(const RowIds& rows) = 0;
};

/// The rows of some tables, those of one parameter group, whose ids' hashes lie in a range. Its range() is in
/// units of kRowHashUnits. Thread-safe as each member says; what RowTable says of its operations holds here.
class RowShard final : public ParameterBlock {
 public:
  /// What became of a table's rows here. Thread-safe.
  struct Counts {
    std::atomic<uint64_t> pulled{0};   ///< asked for
    std::atomic<uint64_t> unknown{0};  ///< of these, not touched by any push
    std::atomic<uint64_t> pushed{0};   ///< updated
    std::atomic<uint64_t> created{0};
    std::atomic<uint64_t> refused{0};      ///< that could not be created
    std::atomic<uint64_t> notAdmitted{0};  ///< gradients left out for rows that did not come into being
    std::atomic<uint64_t> evicted{0};
    std::atomic<uint64_t> longestInsertNs{0};  ///< that making the new rows of one update took
  };
  struct Table {
    uint32_t index = 0;    ///< in ModelSpec::tables
    bool rowSteps = true;  ///< the optimizer counts each row's own updates rather than the shard's
    std::unique_ptr<RowTable> rows;
    std::unique_ptr<RowGate> gate;
    std::unique_ptr<Counts> counts = std::make_unique<Counts>();
  };

  /// `tables` are in the order of their indices. `device`: whose memory they are in.
  RowShard(ShardRange range, size_t device, const Optimizer& optimizer, std::vector<Table> tables,
           std::shared_ptr<TableBytes> bytes)
      : ParameterBlock(range, device, nullptr),
        optimizer_(optimizer),
        tables_(std::move(tables)),
        bytes_(std::move(bytes)) {}
  ~RowShard() override { bytes_->change(counted_, 0); }

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
  /// Rows that one prepare() made.
  struct Created {
    const Table* table = nullptr;
    std::vector<uint64_t> ids;
    uint64_t count = 0;  ///< of different ids
  };
  /// A part of a step whose rows are there.
  struct Prepared {
    StagedRows part;  ///< without the rows that were not admitted
    std::vector<Created> created;
    std::vector<CountedRun> counted;
    std::vector<uint64_t> countedIds;
    std::vector<RowRun> evictedRuns;  ///< set by update(), as the next
    std::vector<uint64_t> evictedIds;

    RowsBeside beside() const { return {{evictedRuns, evictedIds}, counted, countedIds}; }
  };
  /// Takes out the rows that the rules of their tables say are due before update `number`, but for those in
  /// `spared`. Only with the lock held.
  void evictDue(uint64_t number, const RowIds& spared);
  /// Whether evictDue() may find anything.
  bool sweeps() const { return std::ranges::any_of(tables_, &RowGate::sweeps, gateOf); }
  /// Makes the part ready for the update `version`: leaves out what its tables do not admit, and creates the
  /// other rows that are not there, where need be in place of some that are evicted, which are none of the
  /// part's. ErrorCode::overloaded where a limit or memory forbids some of them: then none is created.
  /// limits.table_bytes may be passed by what the indices grow by. Only with the lock held.
  Result<Prepared> prepare(const StagedRows& part, Version version);
  /// Takes out what prepare() made, while nothing has updated it. Only with the lock held.
  Status takeBack(const std::vector<Created>& created);
  /// Makes one update of what was prepared, with the numbers of `update`; the rows are then of `version`.
  /// Sets what has to be written down beside it: everything since the update before. Only with the lock held
  /// since prepare(), or where nobody else makes updates. Fails where state() does.
  Status update(Prepared& prepared, const RowChange& change, const UpdateScalars& update, Version version);
  /// One optimizer step for each of the rows, one after the other, with row after row of `gradients`, with
  /// the numbers of `update`; the rows are then of the version that is there. May race with others element by
  /// element. Gives which rows, by their places, are not there and were passed over.
  std::vector<size_t> applyRacing(const RowIds& rows, std::span<const float> gradients,
                                  const RowChange& change, const UpdateScalars& update);

  /// Prepares the part and makes the update number `update.number` of it. Fails as prepare(), before any row
  /// is updated. Only with the lock held.
  Status update(const StagedRows& part, const RowChange& change, const UpdateScalars& update);
  /// Does again what the log says of an update's rows; before that update. Before anybody else uses the
  /// shard.
  Status repeat(const RowsBeside& beside);
  /// Counts the memory of the rows anew, after they were restored.
  void countBytes();
  /// Evicted rows that are remembered for takeEvicted(), of a row shard.
  static constexpr uint64_t kEvictedMax = uint64_t{1} << 20;
  /// The ids of rows that were evicted since the last call, by table in the order of tables(); nothing where
  /// there was none, or they are more than kEvictedMax. They are remembered from the first call on. Only with
  /// the lock held.
  std::optional<std::vector<std::vector<uint64_t>>> takeEvicted();
  /// Who is told before update() changes rows; null: nobody. It outlives this. Only with the lock held.
  void setObserver(RowsObserver* observer) { observer_ = observer; }
  /// The part's rows whose ids' hashes lie in the ranges, which are in units of kRowHashUnits from the
  /// shard's begin.
  StagedRows rowsIn(const StagedRows& part, const std::vector<PushedRange>& ranges) const;
  /// The part's rows at these places, rising.
  StagedRows rowsAt(const StagedRows& part, std::span<const size_t> places) const;

 private:
  static const RowGate& gateOf(const Table& table) { return *table.gate; }
  const Table* find(uint32_t index) const;
  /// Goes over to the tables' newest rules.
  void followRules();
  /// Row numbers of those of the rows that are there and of the table, rising.
  std::vector<uint32_t> numbersOf(const Table& table, const RowIds& rows) const;
  /// By table, the rows that are not there.
  std::vector<Created> missing(const RowIds& rows) const;
  /// Leaves the rows in `wanted` that are admitted, and the others out of the part.
  void select(std::vector<Created>& wanted, Prepared& prepared, Version version) const;
  /// Evicts rows where the tables of `wanted` have no room for it.
  Status makeRoom(const std::vector<Created>& wanted, const RowIds& spared, Version version);
  /// Takes room in limits.table_bytes for the rows of `wanted`, which may be evicted rows' room.
  Status takeBytes(std::vector<Created>& wanted, const RowIds& spared, Version version);
  /// Whether the tables have room for the rows of `wanted`, of each of which it may leave one.
  static Status checkRoom(std::vector<Created>& wanted);
  /// Makes the rows of `wanted` and sets their counts; all or none.
  Status makeRows(std::vector<Created>& wanted, const RowIds& spared, Version version);
  Status evict(const Table& table, const std::vector<uint64_t>& ids);
  void apply(const RowIds& rows, std::span<const float> gradients, const RowChange& change,
             const UpdateScalars& update, Version version, std::vector<size_t>* missed);

  Optimizer optimizer_;
  const std::vector<Table> tables_;
  const std::shared_ptr<TableBytes> bytes_;  // of all row shards
  uint64_t counted_ = 0;                     // there, of this shard
  RowsObserver* observer_ = nullptr;
  std::vector<RowRun> evictedRuns_;  // since the last update, where there is a log
  std::vector<uint64_t> evictedIds_;
  std::optional<std::vector<std::vector<uint64_t>>> taken_;  // for takeEvicted()
  uint64_t takenCount_ = 0;                                  // in taken_
};

}  // namespace psd
