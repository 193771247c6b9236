#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/types/model_spec.h"
#include "common/types/row_ids.h"
#include "trainer/client/api/row_memory.h"

namespace psd {

/// Float32 values, 64-byte aligned and with 4 readable bytes past the last one, in memory that is reused from
/// batch to batch. Owned by a RowBatch's thread.
class RowValues {
 public:
  explicit RowValues(std::shared_ptr<const RowMemory> memory) : memory_(std::move(memory)) {}
  RowValues(RowValues&&) = default;
  /// Refers to the values of another RowValues, which outlives this one.
  static RowValues in(const RowValues& other);

  /// Makes space for `count` values; their contents are unspecified.
  void resize(size_t count);
  /// Capacity of an empty object after resize(count).
  static size_t capacityFor(size_t count) { return count + count / 4 + 1; }
  /// Whether the daemon may still write to this memory.
  bool lost() const { return block_.lost(); }
  std::span<float> span() { return {values(), count_}; }
  std::span<const float> span() const { return {values(), count_}; }

 private:
  float* values() const { return shared_ != nullptr ? shared_ : block_.values.get(); }

  std::shared_ptr<const RowMemory> memory_;
  RowMemory::Block block_;
  size_t count_ = 0, capacity_ = 0;
  float* shared_ = nullptr;  // in another object
};

/// The rows of embedding tables that one step uses: ids, values and gradients. Each row occurs once, however
/// often its id is listed; the rows of a table are contiguous. Rebuilt for each step, in memory that is
/// reused. Owned by one thread; must not change while a pull or push of it is in progress, except for the
/// values that a pull fills in.
class RowBatch {
 public:
  /// Ids of one table, as a model looks them up: in any order, with repetitions.
  struct Feature {
    uint32_t table = 0;  ///< index into ModelSpec::tables
    std::span<const uint64_t> ids;
  };

  /// `shards`: into how many row shards the daemon cuts tables; any value is correct. A table's rows are
  /// sorted by shard, so that a call carries neighbours. `memory`: where to allocate rows; null: on the heap.
  /// `daemons`: how many daemons serve the tables together, each with `shards` row shards; rows are sorted by
  /// daemon first.
  explicit RowBatch(const std::vector<TableSpec>& tables, uint32_t shards = 1,
                    std::shared_ptr<const RowMemory> memory = nullptr, uint32_t daemons = 1);

  /// The rows that one of the daemons holds: shares values and gradients with this batch, which must not
  /// change meanwhile.
  RowBatch ofDaemon(uint32_t daemon) const;

  /// Sets the rows to those of the features, with zero gradients. The ids need to live only until it returns.
  void make(std::span<const Feature> features) {
    find(features);
    allocate();
  }
  /// First half of make(), for callers that need the size before memory is allocated: finds the rows.
  void find(std::span<const Feature> features);
  /// Second half of make(): allocates memory for the rows that find() has found.
  void allocate();
  /// Bytes that allocate() allocates in a batch without memory, for values and gradients together.
  uint64_t allocationBytes() const { return 2 * RowValues::capacityFor(found_) * sizeof(float); }

  /// Drops memory for values that a daemon may still write to because the connection broke during a pull.
  /// Earlier results of rows() no longer belong to the batch. Gradients stay.
  void dropLostMemory();

  size_t tableCount() const { return tables_.size(); }
  /// Number of shards of each daemon that the ids are divided into, as by planRowShards().
  uint32_t shards() const { return shards_; }
  /// Number of daemons that serve the tables together.
  uint32_t daemons() const { return daemons_; }
  /// Number of the table's rows in the shards before `shard`.
  uint32_t shardBegin(uint32_t table, uint32_t shard) const {
    return shard == 0 ? 0 : tables_[table].shardEnds[shard - 1];
  }
  uint32_t dim(uint32_t table) const { return tables_[table].dim; }
  /// The ids of the table's rows.
  std::span<const uint64_t> ids(uint32_t table) const { return tables_[table].ids; }
  uint64_t rowCount(uint32_t table) const { return tables_[table].ids.size(); }
  /// For each id of a feature, the index of its row in the table: its values are at rows(table)[index · dim].
  std::span<const int64_t> places(size_t feature) const { return places_[feature]; }
  /// The rows' values, [rowCount, dim]. Contents and address are defined from the end of a pull until the
  /// next make() or pull.
  std::span<float> rows(uint32_t table) { return of(table, values_.span()); }
  std::span<const float> rows(uint32_t table) const { return of(table, values_.span()); }
  /// The rows' gradients, [rowCount, dim], to be accumulated into.
  std::span<float> gradients(uint32_t table) { return of(table, gradients_.span()); }
  std::span<const float> gradients(uint32_t table) const { return of(table, gradients_.span()); }
  /// Rows of all tables.
  uint64_t rowCount() const;

 private:
  struct Table {
    uint32_t dim = 0;
    std::vector<uint64_t> ids;
    std::vector<uint32_t> shardEnds;  // rows, by shard
    size_t begin = 0;                 // of its values among those of all tables
  };
  /// A slot of the hash set of ids; in use if its stamp is that of the table being built.
  struct Entry {
    uint64_t id = 0;
    uint32_t stamp = 0;
    uint32_t row = 0;
  };

  template <class Values>
  Values of(uint32_t table, Values all) const {
    return all.subspan(tables_[table].begin, tables_[table].ids.size() * tables_[table].dim);
  }
  void makeTable(uint32_t table, std::span<const Feature> features);
  /// places[i] = index of ids[i] in order of first occurrence; appends new ids to `unique`.
  void enter(std::span<const uint64_t> ids, std::vector<uint64_t>& unique, std::vector<int64_t>& places);
  uint32_t enter(uint64_t id, uint64_t hash, std::vector<uint64_t>& unique);
  void clearEntries(size_t count);
  /// Doubles the entries, whose ids are those of `unique`, in the order of their rows.
  void growEntries(const std::vector<uint64_t>& unique);
  /// Sorts the rows of a table by shard; placeOf_ = the new index of each.
  void sortByShard(Table& table);

  RowBatch(const RowBatch& whole, uint32_t daemon);
  uint32_t shardOf(uint64_t id) const;

  const uint32_t shards_;  // of each daemon
  const uint32_t daemons_;
  RowValues values_, gradients_;  // of all tables, contiguous
  size_t found_ = 0;              // number of values, by the last find()
  std::vector<Table> tables_;
  std::vector<uint32_t> placeOf_;
  std::vector<uint64_t> sorted_;
  std::vector<std::vector<int64_t>> places_;  // by feature
  std::vector<Entry> entries_;                // a power of two of them, about half in use at most
  uint32_t stamp_ = 0;
};

}  // namespace psd
