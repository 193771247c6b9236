#include "server/checkpoint/rows_restore.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "common/safetensors/safetensors.h"
#include "common/types/row_hash.h"
#include "server/checkpoint/saved_rows.h"

namespace psd {
namespace {

bool holdsTable(const ManifestRowShard& shard, uint32_t table) {
  return std::ranges::find(shard.tables, table) != shard.tables.end();
}

bool overlap(const ShardRange& one, const ShardRange& other) {
  return one.begin < other.begin + other.count && other.begin < one.begin + one.count;
}

/// Leaves the rows whose ids' hashes lie in the range.
void keep(SavedRows& rows, const HashRange& range) {
  size_t kept = 0;
  const size_t all = rows.size();
  for (size_t i = 0; i < all; i++) {
    if (!range.contains(rowHash(rows.ids[i]))) continue;
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

/// What the rows of a table are filled with out of one row shard of a checkpoint.
struct Filling {
  size_t from = 0;        ///< row shard of the checkpoint
  bool stateToo = false;  ///< with the state of the optimizer
  uint64_t later = 0;     ///< by how many updates the new row shard is further: ages stay what they were
};

Status fill(Env& env, const Checkpoint& checkpoint, const RowShard::Table& table, const HashRange& range,
            const Filling& filling) {
  std::vector<std::string> names = rowPlaneNames(table.rows->optimizer());
  if (!filling.stateToo) names.resize(1);
  const Version saved = checkpoint.manifest.rowShards[filling.from].version;
  return forEachRows(env, checkpoint, filling.from, table.index, names, [&](SavedRows& rows) -> Status {
    keep(rows, range);
    for (RowMeta& meta : rows.metas) {
      // A live copy may have rows of updates that came after the version it is told to be of.
      meta = RowMeta::of(std::min(meta.version(), saved.value) + filling.later,
                         filling.stateToo ? meta.count() : 0);
    }
    const std::vector<std::span<const float>> planes(rows.planes.begin(), rows.planes.end());
    return table.rows->restore(rows.ids, rows.metas, planes);
  });
}

void addNote(std::vector<std::string>& notes, std::string note) {
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(std::move(note));
}

}  // namespace

Status restoreRows(Env& env, const Checkpoint& checkpoint, RowShard& shard, std::vector<std::string>& notes) {
  const Manifest& manifest = checkpoint.manifest;
  const Optimizer& optimizer = shard.optimizer();
  const uint32_t firstTable = shard.tables().front().index;
  Version version, stateBegan;
  std::vector<PushedRange> pushed;
  for (const ManifestRowShard& from : manifest.rowShards) {
    if (!holdsTable(from, firstTable) || !overlap(from.range, shard.range())) continue;
    takeOverPushes(from.pushed, from.range.begin, shard.range().begin, shard.range().count, pushed);
  }
  const auto eachSource = [&](const RowShard::Table& table,
                              const std::function<Status(size_t)>& visit) -> Status {
    for (size_t i = 0; i < manifest.rowShards.size(); i++) {
      const ManifestRowShard& from = manifest.rowShards[i];
      if (holdsTable(from, table.index) && overlap(from.range, shard.range())) PSD_RETURN_IF_ERROR(visit(i));
    }
    return {};
  };
  for (const RowShard::Table& table : shard.tables()) {
    PSD_RETURN_IF_ERROR(eachSource(table, [&](size_t i) {
      version = std::max(version, manifest.rowShards[i].version);
      stateBegan = std::max(stateBegan, manifest.rowShards[i].stateBegan);
      return Status();
    }));
  }
  bool fresh = false;
  for (const RowShard::Table& table : shard.tables()) {
    PSD_RETURN_IF_ERROR(eachSource(table, [&](size_t i) -> Status {
      const ManifestRowShard& from = manifest.rowShards[i];
      const Optimizer& before = manifest.groups[from.range.group].optimizer;
      const bool same =
          before.name() == optimizer.name() && rowPlaneNames(before) == rowPlaneNames(optimizer);
      if (!same && (!before.slots().empty() || !optimizer.slots().empty())) {
        fresh = true;
        addNote(notes, fmt::format("rows begin with a fresh state of optimizer '{}': they had that of '{}'",
                                   optimizer.name(), before.name()));
      }
      PSD_RETURN_IF_ERROR(restoreCounts(env, checkpoint, i, table.index, *table.gate));
      return fill(env, checkpoint, table, shard.hashes(), {i, same, version.value - from.version.value});
    }));
  }
  shard.restore(version, PushedRanges(std::move(pushed)), fresh ? version : stateBegan);
  shard.turnover().countBytes();
  return {};
}

Status writeTable(Env& env, const Checkpoint& checkpoint, uint32_t table, const std::string& to) {
  const Manifest& manifest = checkpoint.manifest;
  const TableSpec& spec = manifest.model.tables[table];
  uint64_t count = 0;
  const auto visit = [&](const std::vector<std::string>& planes,
                         const std::function<Status(SavedRows&)>& work) -> Status {
    for (size_t i = 0; i < manifest.rowShards.size(); i++) {
      if (!holdsTable(manifest.rowShards[i], table)) continue;
      PSD_RETURN_IF_ERROR(forEachRows(env, checkpoint, i, table, planes, work));
    }
    return {};
  };
  PSD_RETURN_IF_ERROR(visit({}, [&](const SavedRows& rows) {
    count += rows.size();
    return Status();
  }));
  if (count == 0) {
    return {ErrorCode::invalidArgument,
            fmt::format("table '{}' of '{}' has no rows", spec.name, checkpoint.path)};
  }
  ModelSpec content;
  content.tensors = {{"keys", DType::u64, {count}}, {"values", DType::f32, {count, spec.dim}}};
  return writeFileAtomically(env, to, [&](WritableFile& file) -> Status {
    PSD_RETURN_IF_ERROR(
        writeSafetensorsHead(file, content, {{"table", spec.name}, {"writer", "psd " PSD_VERSION}}));
    PSD_RETURN_IF_ERROR(
        visit({}, [&](const SavedRows& rows) { return file.append(std::as_bytes(std::span(rows.ids))); }));
    return visit({"values"}, [&](const SavedRows& rows) {
      return file.append(std::as_bytes(std::span(rows.planes.front())));
    });
  });
}

}  // namespace psd
