#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "common/plan/shard_plan.h"
#include "common/types/model_spec.h"
#include "common/types/row_hash.h"
#include "server/store/rows/row_rules.h"

namespace psd::testing {

/// The expected content of tables with rules after updates of plain SGD at rate 1, from maps of ids alone.
/// Every update updates each row shard. For at most a few thousand rows per row shard. Owned by one thread.
class RowRulesModel {
 public:
  struct Row {
    std::vector<float> values;
    uint64_t version = 0;
    bool operator==(const Row&) const = default;
  };
  using Rows = std::map<uint64_t, Row>;
  /// Rows of one table with a gradient for each.
  struct Part {
    uint32_t table = 0;
    std::span<const uint64_t> ids;
    std::span<const float> gradients;
  };

  RowRulesModel(std::vector<TableSpec> tables, std::vector<RowRules> rules, uint32_t rowShards)
      : specs_(std::move(tables)), rules_(std::move(rules)), rows_(specs_.size()), counts_(specs_.size()) {
    cut(rowShards);
  }

  /// Divides the tables into `rowShards` row shards from now on.
  void cut(uint32_t rowShards) {
    ranges_.clear();
    for (const ShardRange& range : planRowShards(rowShards)) {
      ranges_.push_back({range.begin << 32, ((range.begin + range.count) << 32) - 1});
    }
  }
  void setRules(uint32_t table, const RowRules& rules) { rules_[table] = rules; }

  const Rows& rows(uint32_t table) const { return rows_[table]; }
  uint64_t evicted() const { return evicted_; }
  uint64_t notAdmitted() const { return notAdmitted_; }
  std::vector<float> values(uint32_t table, uint64_t id) const {
    const auto found = rows_[table].find(id);
    return found == rows_[table].end() ? startOf(table, id) : found->second.values;
  }

  /// Makes update `number` of every row shard; false if one of them has no space for it: that one has then
  /// evicted rows and changed nothing else.
  bool update(uint64_t number, const std::vector<Part>& parts) {
    bool room = true;
    for (const HashRange& range : ranges_) room = updateShard(number, parts, range) && room;
    return room;
  }

 private:
  std::vector<float> startOf(uint32_t table, uint64_t id) const {
    std::vector<float> values(specs_[table].dim);
    specs_[table].initial.fill(id, values);
    return values;
  }

  static double squareOf(const Row& row) {
    double square = 0;
    for (const float value : row.values) square += static_cast<double>(value) * value;
    return square;
  }

  void evict(uint32_t table, uint64_t id) {
    rows_[table].erase(id);
    evicted_++;
  }

  void evictDue(uint32_t table, uint64_t number, const HashRange& range, const std::set<uint64_t>& spared) {
    const EvictRule& rule = rules_[table].evict;
    const uint64_t pass = rule.pass();
    if (pass == 0) return;
    // The update scans the part of the hash range that its number has in the pass.
    const auto width = static_cast<unsigned __int128>(range.last - range.first) + 1;
    const uint64_t part = number % pass;
    std::vector<uint64_t> due;
    for (const auto& [id, row] : rows_[table]) {
      const uint64_t hash = rowHash(id);
      if (!range.contains(hash) || spared.contains(id)) continue;
      const uint64_t distance = hash - range.first;
      if (distance < static_cast<uint64_t>(width * part / pass)) continue;
      if (part + 1 < pass && distance >= static_cast<uint64_t>(width * (part + 1) / pass)) continue;
      const bool applies = rule.by == EvictRule::By::norm ? squareOf(row) < rule.below * rule.below
                                                          : number - row.version > rule.updates;
      if (applies) due.push_back(id);
    }
    for (const uint64_t id : due) evict(table, id);
  }

  /// Whether this update creates the row.
  bool admits(uint32_t table, uint64_t id, uint64_t number) {
    const AdmitRule& rule = rules_[table].admit;
    if (rule.counts()) return ++counts_[table][id] >= rule.pushes;
    if (rule.probability >= 1) return true;
    const uint64_t drawn = splitMix(splitMix(specs_[table].initial.seed ^ rowHash(id)) + number);
    return std::ldexp(static_cast<double>(drawn >> 11), -53) < rule.probability;
  }

  bool makeRoom(uint32_t table, uint64_t wanted, const HashRange& range, const std::set<uint64_t>& spared) {
    const RowRules& rules = rules_[table];
    const uint64_t most = rules.rowsMax / ranges_.size() + (rules.rowsMax % ranges_.size() != 0);
    uint64_t there = 0;
    std::vector<std::tuple<double, uint64_t, uint64_t>> candidates;
    for (const auto& [id, row] : rows_[table]) {
      if (!range.contains(rowHash(id))) continue;
      there++;
      const double rank =
          rules.evict.by == EvictRule::By::norm ? squareOf(row) : static_cast<double>(row.version);
      if (!spared.contains(id)) candidates.emplace_back(rank, rowHash(id), id);
    }
    if (wanted == 0 || there + wanted <= most) return true;
    if (rules.evict.by == EvictRule::By::never || wanted > most) return false;
    const uint64_t lacking = there + wanted - most;
    if (candidates.size() < lacking) return false;
    std::ranges::sort(candidates);
    const uint64_t out = std::max(lacking, std::min<uint64_t>(512, there / 16));
    for (size_t i = 0; i < std::min<uint64_t>(out, candidates.size()); i++) {
      evict(table, std::get<2>(candidates[i]));
    }
    return true;
  }

  bool updateShard(uint64_t number, const std::vector<Part>& parts, const HashRange& range) {
    std::map<uint32_t, std::set<uint64_t>> named, made;
    std::vector<std::map<uint64_t, uint32_t>> counted = counts_;
    for (const Part& part : parts) {
      for (const uint64_t id : part.ids) {
        if (range.contains(rowHash(id))) named[part.table].insert(id);
      }
    }
    for (uint32_t table = 0; table < specs_.size(); table++) evictDue(table, number, range, named[table]);
    for (const auto& [table, ids] : named) {
      for (const uint64_t id : ids) {
        if (!rows_[table].contains(id) && admits(table, id, number)) made[table].insert(id);
      }
    }
    bool room = true;
    for (const auto& [table, ids] : made) room = makeRoom(table, ids.size(), range, named[table]) && room;
    if (!room) {
      counts_ = std::move(counted);
      return false;
    }
    for (const auto& [table, ids] : made) {
      for (const uint64_t id : ids) rows_[table][id] = {startOf(table, id), number};
    }
    for (const Part& part : parts) apply(part, number, range);
    return true;
  }

  void apply(const Part& part, uint64_t number, const HashRange& range) {
    const uint32_t dim = specs_[part.table].dim;
    for (size_t i = 0; i < part.ids.size(); i++) {
      if (!range.contains(rowHash(part.ids[i]))) continue;
      const auto row = rows_[part.table].find(part.ids[i]);
      if (row == rows_[part.table].end()) {
        notAdmitted_++;
        continue;
      }
      row->second.version = number;
      for (uint32_t d = 0; d < dim; d++) row->second.values[d] -= part.gradients[i * dim + d];
    }
  }

  const std::vector<TableSpec> specs_;
  std::vector<RowRules> rules_;
  std::vector<HashRange> ranges_;
  std::vector<Rows> rows_;                            // by table
  std::vector<std::map<uint64_t, uint32_t>> counts_;  // by table, of rows that do not exist
  uint64_t evicted_ = 0, notAdmitted_ = 0;
};

}  // namespace psd::testing
