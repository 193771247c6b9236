#include "server/store/rows/row_snapshot.h"

#include <algorithm>
#include <thread>

namespace psd {
namespace {

uint64_t floatsOfRow(const RowLayout& layout) {
  uint64_t floats = 0;
  for (uint32_t plane = 0; plane < layout.planeCount(); plane++) floats += layout.width(plane);
  return floats;
}

}  // namespace

void RowPiece::clear(uint32_t planeCount) {
  ids.clear();
  metas.clear();
  planes.resize(planeCount);
  for (auto& plane : planes) plane.clear();
}

uint64_t RowPiece::bytes() const {
  uint64_t bytes = ids.size() * (sizeof(uint64_t) + sizeof(RowMeta));
  for (const auto& plane : planes) bytes += plane.size() * sizeof(float);
  return bytes;
}

RowSnapshot::RowSnapshot(RowShard& shard, bool live, std::optional<BaseSnapshot> since)
    : shard_(shard), live_(live), version_(shard.version()), since_(since), saved_(shard.tables().size()) {
  for (const RowShard::Table& table : shard_.tables()) {
    TableExtras& beside = extras_.emplace_back();
    beside.table = table.index;
    const AdmissionFilter* const filter = table.gate->filter();
    if (filter) beside.counts = filter->saved();
    if (!beside.counts.empty()) beside.countTerms = {filter->terms().pushes, filter->terms().blockBits};
  }
  if (!live_) shard_.turnover().setObserver(this);
  // Updates that started earlier may still write rows of earlier versions. Wait for them to end before
  // reading.
  Epochs& epochs = shard_.tables().front().rows->epochs();
  for (const uint64_t stamp = epochs.stamp(); live_ && !epochs.passed(stamp);) std::this_thread::yield();
}

RowSnapshot::~RowSnapshot() {
  if (!live_) shard_.turnover().setObserver(nullptr);
}

bool RowSnapshot::untouched(size_t table, uint64_t hash, RowMeta meta) const {
  const bool read = table < table_ || (table == table_ && (cursor_.ended || hash < cursor_.hash));
  return !read && meta.version() <= version_.value && changed(meta);
}

void RowSnapshot::beforeChange(const RowIds& rows) {
  std::vector<uint32_t> numbers;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const RowShardTable* const found = findTable(shard_.tables(), run.table);
    const auto table = static_cast<size_t>(found - shard_.tables().data());
    if (table < table_) return;
    numbers.resize(ids.size());
    found->rows->find(ids, numbers);
    saveRows(table, ids, numbers);
  });
}

void RowSnapshot::saveRows(size_t table, std::span<const uint64_t> ids, std::span<const uint32_t> numbers) {
  const RowTable& rows = *shard_.tables()[table].rows;
  const uint64_t floats = floatsOfRow(rows.layout());
  std::vector<SavedRow*> fresh;  // with their row numbers, so that each plane is read in one call
  std::vector<uint32_t> freshNumbers;
  for (size_t i = 0; i < ids.size(); i++) {
    const uint64_t hash = rowHash(ids[i]);
    if (numbers[i] == kNoRow || !untouched(table, hash, rows.meta(numbers[i]))) continue;
    const auto [place, isFresh] = saved_[table].try_emplace(hash);
    if (!isFresh) continue;
    place->second = {ids[i], rows.meta(numbers[i]), std::vector<float>(floats)};
    fresh.push_back(&place->second);
    freshNumbers.push_back(numbers[i]);
  }
  if (fresh.empty()) return;
  std::vector<float> values;
  uint64_t at = 0;
  for (uint32_t plane = 0; plane < rows.layout().planeCount(); plane++) {
    const uint32_t width = rows.layout().width(plane);
    values.resize(fresh.size() * width);
    rows.readPlane(plane, freshNumbers, values);
    for (size_t i = 0; i < fresh.size(); i++) {
      std::copy_n(values.data() + i * width, width, fresh[i]->planes.data() + at);
    }
    at += width;
  }
  heldBytes_ += fresh.size() * (sizeof(SavedRow) + floats * sizeof(float));
}

bool RowSnapshot::next(RowPiece& piece) {
  constexpr size_t kEnoughRows = 1024, kSegmentsMost = 32;
  piece.clear(0);
  if (table_ == saved_.size()) return false;
  const RowShard::Table& table = shard_.tables()[table_];
  piece.table = table.index;
  piece.clear(table.rows->layout().planeCount());
  const auto wanted = [&](RowMeta meta) {
    // Rows of later versions are new or have been saved before their change.
    return changed(meta) && (live_ || meta.version() <= version_.value);
  };
  std::vector<RowEntry> entries;
  for (size_t i = 0; i < kSegmentsMost && piece.ids.size() < kEnoughRows && !cursor_.ended; i++) {
    table.rows->nextWhere(cursor_, entries, wanted);
    append(piece, *table.rows, entries);
    SavedRows& saved = saved_[table_];
    const auto end = cursor_.ended ? saved.end() : saved.lower_bound(cursor_.hash);
    for (auto row = saved.begin(); row != end; row = saved.erase(row))
      append(piece, *table.rows, row->second);
  }
  if (cursor_.ended) {
    table_++;
    cursor_ = {};
  }
  return true;
}

void RowSnapshot::append(RowPiece& piece, const RowTable& table, const std::vector<RowEntry>& entries) const {
  std::vector<uint32_t> rows;
  for (const RowEntry& entry : entries) {
    piece.ids.push_back(entry.id);
    piece.metas.push_back(table.meta(entry.row));
    rows.push_back(entry.row);
  }
  for (uint32_t plane = 0; plane < piece.planes.size(); plane++) {
    auto& values = piece.planes[plane];
    const size_t before = values.size();
    values.resize(before + rows.size() * table.layout().width(plane));
    table.readPlane(plane, rows, std::span(values).subspan(before));
  }
}

void RowSnapshot::append(RowPiece& piece, const RowTable& table, const SavedRow& row) {
  piece.ids.push_back(row.id);
  piece.metas.push_back(row.meta);
  std::span<const float> left = row.planes;
  for (uint32_t plane = 0; plane < piece.planes.size(); plane++) {
    const auto values = left.first(table.layout().width(plane));
    piece.planes[plane].insert(piece.planes[plane].end(), values.begin(), values.end());
    left = left.subspan(values.size());
  }
  heldBytes_ -= sizeof(SavedRow) + row.planes.size() * sizeof(float);
}

}  // namespace psd
