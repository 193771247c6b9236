#include "server/checkpoint/rows_restore.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "common/plan/model_partitions.h"
#include "common/types/row_hash.h"
#include "server/checkpoint/saved_rows.h"
#include "server/store/derived_weights.h"

namespace psd {
namespace {

bool holdsTable(const ManifestRowShard& shard, uint32_t table) {
  return std::ranges::find(shard.tables, table) != shard.tables.end();
}

bool overlap(const ShardRange& one, const ShardRange& other) {
  return one.begin < other.begin + other.count && other.begin < one.begin + one.count;
}

/// A row shard of a checkpoint.
struct Source {
  const Checkpoint* checkpoint;
  size_t number = 0;  ///< index of the row shard

  const Manifest& manifest() const { return checkpoint->manifest; }
  const ManifestRowShard& shard() const { return manifest().rowShards[number]; }
  const Optimizer& optimizer() const { return manifest().groups[shard().range.group].optimizer; }
};

/// The row shards that hold rows of a table and may overlap the range.
std::vector<Source> sourcesOf(std::span<const PlacedCheckpoint> from, uint32_t table,
                              const ShardRange& range) {
  std::vector<Source> sources;
  for (const PlacedCheckpoint& each : from) {
    const auto& shards = each.checkpoint->manifest.rowShards;
    for (size_t i = 0; i < shards.size(); i++) {
      if (holdsTable(shards[i], table) && overlap(shards[i].range, range))
        sources.push_back({each.checkpoint, i});
    }
  }
  return sources;
}

/// Selects the rows that belong to a row shard.
struct Wanted {
  HashRange range;
  std::optional<Partition> partition;  ///< whose daemon must own them; nullopt: any

  bool holds(uint64_t id) const {
    const uint64_t hash = rowHash(id);
    return range.contains(hash) && (!partition || partitionOf(hash, partition->of) == partition->index);
  }
};

/// Drops the rows that are not wanted.
void keep(SavedRows& rows, const Wanted& wanted) {
  size_t kept = 0;
  const size_t all = rows.size();
  for (size_t i = 0; i < all; i++) {
    if (!wanted.holds(rows.ids[i])) continue;
    rows.ids[kept] = rows.ids[i];
    rows.metas[kept] = rows.metas[i];
    for (auto& plane : rows.planes) {
      const size_t width = plane.size() / all;
      std::copy_n(plane.begin() + static_cast<ptrdiff_t>(i * width), width,
                  plane.begin() + static_cast<ptrdiff_t>(kept * width));
    }
    kept++;
  }
  for (auto& plane : rows.planes) plane.resize(plane.size() / std::max<size_t>(all, 1) * kept);
  rows.ids.resize(kept);
  rows.metas.resize(kept);
}

/// How one row shard of a checkpoint contributes to a table's rows.
struct Filling {
  Source from;
  bool withState = false;  ///< with the optimizer state
  uint64_t later = 0;      ///< updates by which the new row shard is ahead: preserves the ages of rows
};

/// If the weights are a function of the optimizer's state: makes the values those of the state, or without
/// state appends one that yields the values.
void fitPlanes(const RowTable& table, SavedRows& rows, bool withState) {
  const Optimizer& optimizer = table.optimizer();
  if (!optimizer.derivesWeights()) return;
  if (!withState) {
    for (const Slot& slot : optimizer.slots())
      rows.planes.emplace_back(rows.planes[0].size(), slot.initialValue);
  }
  const std::vector<std::span<float>> planes(rows.planes.begin(), rows.planes.end());
  const auto derive = withState ? deriveWeights : deriveState;
  derive(optimizer, table.dim(), planes);
}

Status fill(Env& env, const RowShard::Table& table, const Wanted& wanted, const Filling& filling) {
  std::vector<std::string> names = rowPlaneNames(table.rows->optimizer());
  if (!filling.withState) names.resize(1);
  const Version saved = filling.from.shard().version;
  return forEachRows(
      env, *filling.from.checkpoint, filling.from.number, table.index, names, [&](SavedRows& rows) -> Status {
        keep(rows, wanted);
        for (RowMeta& meta : rows.metas) {
          // A live copy may have rows from updates after its recorded version.
          meta = RowMeta::of(std::min(meta.version(), saved.value) + filling.later,
                             filling.withState ? meta.count() : 0);
        }
        fitPlanes(*table.rows, rows, filling.withState);
        const std::vector<std::span<const float>> planes(rows.planes.begin(), rows.planes.end());
        return table.rows->restore(rows.ids, rows.metas, planes);
      });
}

void addNote(std::vector<std::string>& notes, std::string note) {
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(std::move(note));
}

}  // namespace

Status restoreRows(Env& env, std::span<const PlacedCheckpoint> from, const Partition& partition,
                   RowShard& shard, std::vector<std::string>& notes) {
  const Optimizer& optimizer = shard.optimizer();
  const ShardRange& range = shard.range();
  Version version, stateSince;
  std::vector<PushedRange> pushed;
  for (const Source& source : sourcesOf(from, shard.tables().front().index, range)) {
    if (source.manifest().model.partition != partition) continue;
    copyPushes(source.shard().pushed, source.shard().range.begin, range.begin, range.count, pushed);
  }
  for (const RowShard::Table& table : shard.tables()) {
    for (const Source& source : sourcesOf(from, table.index, range)) {
      version = std::max(version, source.shard().version);
      stateSince = std::max(stateSince, source.shard().stateSince);
    }
  }
  bool fresh = false;
  for (const RowShard::Table& table : shard.tables()) {
    for (const Source& source : sourcesOf(from, table.index, range)) {
      const Optimizer& before = source.optimizer();
      const bool same =
          before.name() == optimizer.name() && rowPlaneNames(before) == rowPlaneNames(optimizer);
      if (same) PSD_RETURN_IF_ERROR(checkRateOfState(before, optimizer));
      if (!same && (!before.slots().empty() || !optimizer.slots().empty())) {
        fresh = true;
        addNote(notes, fmt::format("rows start with fresh state of optimizer '{}': they had that of '{}'",
                                   optimizer.name(), before.name()));
      }
      PSD_RETURN_IF_ERROR(restoreCounts(env, *source.checkpoint, source.number, table.index, *table.gate));
      Wanted wanted{shard.hashes(), {}};
      if (source.manifest().model.partition != partition) wanted.partition = partition;
      PSD_RETURN_IF_ERROR(
          fill(env, table, wanted, {source, same, version.value - source.shard().version.value}));
    }
  }
  shard.restore(version, pushedOf(range.count, std::move(pushed)), fresh ? version : stateSince);
  shard.turnover().countBytes();
  return {};
}

}  // namespace psd
