#include "trainer/client/api/row_batch.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "common/plan/model_partitions.h"
#include "common/plan/shard_plan.h"
#include "common/types/model_layout.h"
#include "common/types/row_hash.h"

namespace psd {
namespace {

constexpr size_t kPrefetch = 16;  // ids
constexpr size_t kEntriesMin = 1024;

/// Of `shards` row shards, the one that holds `hash`, as planRowShards() divides the hashes.
uint32_t rowShardOf(uint64_t hash, uint64_t shards) {
  static_assert(kRowHashUnits == uint64_t{1} << 32);
  return static_cast<uint32_t>((((hash >> 32) + 1) * shards - 1) >> 32);
}

}  // namespace

void RowValues::resize(size_t count) {
  count_ = count;
  const bool enough = count <= capacity_ && !lost();
  if (enough && block_.ring) return;
  const size_t capacity = enough ? capacity_ : capacityFor(count);
  if (!enough) block_ = {};  // first, so that its memory can be allocated again
  if (auto inRing = memory_->takeInRing(capacity * sizeof(float)); inRing.values) {
    block_ = std::move(inRing);
  } else if (!enough) {
    block_ = RowMemory::takeOnHeap(capacity * sizeof(float));
  }
  capacity_ = capacity;
}

RowValues RowValues::in(const RowValues& other) {
  RowValues values(other.memory_);
  values.count_ = other.count_;
  values.shared_ = other.values();
  return values;
}

RowBatch::RowBatch(const std::vector<TableSpec>& tables, uint32_t shards,
                   std::shared_ptr<const RowMemory> memory, uint32_t daemons)
    : shards_(std::max(1u, shards)),
      daemons_(std::max(1u, daemons)),
      values_(memory ? memory : std::make_shared<const RowMemory>()),
      gradients_(memory ? memory : std::make_shared<const RowMemory>()) {
  for (const TableSpec& table : tables) {
    tables_.emplace_back();
    tables_.back().dim = table.dim;
    tables_.back().shardEnds.resize(size_t{shards_} * daemons_);
  }
}

RowBatch::RowBatch(const RowBatch& whole, uint32_t daemon)
    : shards_(whole.shards_),
      daemons_(1),
      values_(RowValues::in(whole.values_)),
      gradients_(RowValues::in(whole.gradients_)) {
  const uint32_t first = daemon * shards_;
  for (uint32_t i = 0; i < whole.tableCount(); i++) {
    const Table& all = whole.tables_[i];
    Table& own = tables_.emplace_back();
    const uint32_t begin = whole.shardBegin(i, first), end = whole.shardBegin(i, first + shards_);
    own.dim = all.dim;
    own.ids.assign(all.ids.begin() + begin, all.ids.begin() + end);
    own.begin = all.begin + size_t{begin} * all.dim;
    for (uint32_t k = 0; k < shards_; k++) own.shardEnds.push_back(all.shardEnds[first + k] - begin);
  }
}

RowBatch RowBatch::ofDaemon(uint32_t daemon) const { return RowBatch(*this, daemon); }

uint32_t RowBatch::shardOf(uint64_t id) const {
  const uint64_t hash = rowHash(id);
  return partitionOf(hash, daemons_) * shards_ + rowShardOf(hash, shards_);
}

uint64_t RowBatch::rowCount() const {
  uint64_t rows = 0;
  for (const Table& table : tables_) rows += table.ids.size();
  return rows;
}

void RowBatch::find(std::span<const Feature> features) {
  places_.resize(features.size());
  found_ = 0;
  for (uint32_t table = 0; table < tables_.size(); table++) {
    makeTable(table, features);
    constexpr size_t kGrain = kLayoutGrainElements;
    tables_[table].begin = found_;
    found_ += (tables_[table].ids.size() * tables_[table].dim + kGrain - 1) / kGrain * kGrain;
  }
}

void RowBatch::allocate() {
  values_.resize(found_);
  gradients_.resize(found_);
  std::ranges::fill(gradients_.span(), 0.f);
}

void RowBatch::dropLostMemory() {
  if (values_.lost()) values_.resize(values_.span().size());
}

void RowBatch::makeTable(uint32_t table, std::span<const Feature> features) {
  Table& of = tables_[table];
  of.ids.clear();
  if (++stamp_ == 0 || entries_.empty()) clearEntries(std::max(entries_.size(), kEntriesMin));
  for (size_t i = 0; i < features.size(); i++) {
    if (features[i].table == table) enter(features[i].ids, of.ids, places_[i]);
  }
  if (shards_ == 1 && daemons_ == 1) {
    of.shardEnds[0] = static_cast<uint32_t>(of.ids.size());
    return;
  }
  sortByShard(of);
  for (size_t i = 0; i < features.size(); i++) {
    if (features[i].table != table) continue;
    for (int64_t& place : places_[i]) place = placeOf_[static_cast<size_t>(place)];
  }
}

void RowBatch::enter(std::span<const uint64_t> ids, std::vector<uint64_t>& unique,
                     std::vector<int64_t>& places) {
  std::array<uint64_t, kPrefetch> hashes;
  const auto prefetch = [&](size_t k) {
    hashes[k % kPrefetch] = rowHash(ids[k]);
    __builtin_prefetch(&entries_[hashes[k % kPrefetch] & (entries_.size() - 1)], 1);
  };
  places.resize(ids.size());
  for (size_t k = 0; k < std::min(ids.size(), kPrefetch); k++) prefetch(k);
  for (size_t k = 0; k < ids.size(); k++) {
    const uint64_t hash = hashes[k % kPrefetch];
    if (k + kPrefetch < ids.size()) prefetch(k + kPrefetch);
    places[k] = enter(ids[k], hash, unique);
  }
}

uint32_t RowBatch::enter(uint64_t id, uint64_t hash, std::vector<uint64_t>& unique) {
  const size_t mask = entries_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    Entry& entry = entries_[at];
    if (entry.stamp != stamp_) {
      const auto row = static_cast<uint32_t>(unique.size());
      entry = {id, stamp_, row};
      unique.push_back(id);
      if (2 * unique.size() > entries_.size()) growEntries(unique);
      return row;
    }
    if (entry.id == id) return entry.row;
  }
}

void RowBatch::clearEntries(size_t count) {
  entries_.assign(count, Entry());
  stamp_ = 1;
}

void RowBatch::growEntries(const std::vector<uint64_t>& unique) {
  clearEntries(2 * entries_.size());
  const size_t mask = entries_.size() - 1;
  for (uint32_t row = 0; row < unique.size(); row++) {
    size_t at = rowHash(unique[row]) & mask;
    while (entries_[at].stamp == stamp_) at = (at + 1) & mask;
    entries_[at] = {unique[row], stamp_, row};
  }
}

void RowBatch::sortByShard(Table& table) {
  std::vector<uint32_t> next(table.shardEnds.size() + 1);
  placeOf_.resize(table.ids.size());
  sorted_.resize(table.ids.size());
  for (size_t i = 0; i < table.ids.size(); i++) {
    placeOf_[i] = shardOf(table.ids[i]);
    next[placeOf_[i] + 1]++;
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::copy(next.begin() + 1, next.end(), table.shardEnds.begin());
  for (size_t i = 0; i < table.ids.size(); i++) {
    placeOf_[i] = next[placeOf_[i]]++;
    sorted_[placeOf_[i]] = table.ids[i];
  }
  table.ids.swap(sorted_);
}

}  // namespace psd
