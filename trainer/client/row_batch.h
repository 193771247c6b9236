#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/types/model_spec.h"
#include "common/types/row_ids.h"
#include "trainer/client/row_memory.h"

namespace psd {

/// Float32 values, 64-byte aligned and with 4 bytes to read behind the last one, in memory that is used again
/// from batch to batch. Owned by a RowBatch's thread.
class RowValues {
 public:
  explicit RowValues(std::shared_ptr<const RowMemory> memory) : memory_(std::move(memory)) {}
  RowValues(RowValues&&) = default;
  /// The values of another RowValues, in its memory; that one outlives this one.
  static RowValues in(const RowValues& other);

  /// Makes room for `count` values, whatever they are.
  void resize(size_t count);
  /// How many values there is room for once an empty object was made to hold `count`.
  static size_t roomFor(size_t count) { return count + count / 4 + 1; }
  /// Whether the daemon may still come to write what lies here.
  bool lost() const { return block_.lost(); }
  std::span<float> span() { return {values(), count_}; }
  std::span<const float> span() const { return {values(), count_}; }

 private:
  float* values() const { return elsewhere_ != nullptr ? elsewhere_ : block_.values.get(); }

  std::shared_ptr<const RowMemory> memory_;
  RowMemory::Block block_;
  size_t count_ = 0, room_ = 0;
  float* elsewhere_ = nullptr;  // in another object
};

/// The rows of embedding tables that one step uses: which they are, their values and their gradients. Each
/// row is in it once, however often its id comes; the rows of a table lie one after the other. Made anew for
/// each step, in memory that is used again. Owned by one thread; while a pull or a push of it is under way it
/// must stay as it is, but for the values that a pull fills in.
class RowBatch {
 public:
  /// Ids of one table, as a model looks them up: in any order, any number of times.
  struct Feature {
    uint32_t table = 0;  ///< index into ModelSpec::tables
    std::span<const uint64_t> ids;
  };

  /// `shards`: into how many row shards the daemon cuts tables. The rows of a table are put in their order,
  /// so that a call carries neighbours; any number is right. `memory`: where rows are best; null: anywhere.
  /// `daemons`: how many serve the tables together, each with so many row shards: those of one come first,
  /// then those of the next.
  explicit RowBatch(const std::vector<TableSpec>& tables, uint32_t shards = 1,
                    std::shared_ptr<const RowMemory> memory = nullptr, uint32_t daemons = 1);

  /// The rows that one of the daemons has: values and gradients are those of this batch, which stays as it is
  /// meanwhile.
  RowBatch ofDaemon(uint32_t daemon) const;

  /// Takes the rows of the features, and zeros for their gradients. The ids need only live until it returns.
  void make(std::span<const Feature> features) {
    find(features);
    makeRoom();
  }
  /// make() in two parts, for who is to know before there is memory for values how much it will be: which
  /// rows these are, …
  void find(std::span<const Feature> features);
  /// … and room for what find() has found.
  void makeRoom();
  /// Bytes that makeRoom() takes in a batch that has none yet, for values and gradients together.
  uint64_t roomBytes() const { return 2 * RowValues::roomFor(found_) * sizeof(float); }

  /// Lets go of values which a daemon may still come to write, since the connection broke during a pull. What
  /// rows() gave before is not the batch's any more. Gradients stay.
  void leaveLostMemory();

  size_t tableCount() const { return tables_.size(); }
  /// Into how many shards the ids are divided, as planRowShards() has it for one daemon.
  uint32_t shards() const { return shards_; }
  /// How many daemons have them together.
  uint32_t daemons() const { return daemons_; }
  /// Of the table's rows, those of the shards before `shard` come before this one.
  uint32_t shardBegin(uint32_t table, uint32_t shard) const {
    return shard == 0 ? 0 : tables_[table].shardEnds[shard - 1];
  }
  uint32_t dim(uint32_t table) const { return tables_[table].dim; }
  /// The table's rows.
  std::span<const uint64_t> ids(uint32_t table) const { return tables_[table].ids; }
  uint64_t rowCount(uint32_t table) const { return tables_[table].ids.size(); }
  /// For each id of a feature its row in the block of its table: rows(table) from place · dim on.
  std::span<const int64_t> places(size_t feature) const { return places_[feature]; }
  /// The rows' values, [rowCount, dim]. What they are, and where, is defined from the end of a pull to the
  /// next make() or pull.
  std::span<float> rows(uint32_t table) { return of(table, values_.span()); }
  std::span<const float> rows(uint32_t table) const { return of(table, values_.span()); }
  /// The rows' gradients, [rowCount, dim], to be added to.
  std::span<float> gradients(uint32_t table) { return of(table, gradients_.span()); }
  std::span<const float> gradients(uint32_t table) const { return of(table, gradients_.span()); }
  /// All tables' rows together.
  uint64_t rowCount() const;

 private:
  struct Table {
    uint32_t dim = 0;
    std::vector<uint64_t> ids;
    std::vector<uint32_t> shardEnds;  // rows, by shard
    size_t begin = 0;                 // of its values among all tables'
  };
  /// A place of the set of ids; used where its stamp is that of the table that is being made.
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
  /// places[i] = the row of ids[i] in the order of coming; enters those that are new.
  void enter(std::span<const uint64_t> ids, std::vector<uint64_t>& unique, std::vector<int64_t>& places);
  uint32_t enter(uint64_t id, uint64_t hash, std::vector<uint64_t>& unique);
  /// Puts the rows of a table in the order of their shards; placeOf_ = the place of each.
  void sortByShard(Table& table);

  RowBatch(const RowBatch& whole, uint32_t daemon);
  uint32_t shardOf(uint64_t id) const;

  const uint32_t shards_;  // of each daemon
  const uint32_t daemons_;
  RowValues values_, gradients_;  // of all tables, one after the other
  size_t found_ = 0;              // values of these, by the last find()
  std::vector<Table> tables_;
  std::vector<uint32_t> placeOf_;
  std::vector<uint64_t> sorted_;
  std::vector<std::vector<int64_t>> places_;  // by feature
  std::vector<Entry> entries_;                // a power of two of them, at most half of them used
  uint32_t stamp_ = 0;
};

}  // namespace psd
