#include "server/store/rows/row_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace psd {

RowTable::RowTable(Options options, std::unique_ptr<RowStorage> storage, std::shared_ptr<Epochs> epochs)
    : options_(options),
      epochs_(std::move(epochs)),
      storage_(std::move(storage)),
      index_(options_.range, epochs_),
      numbers_(*storage_, epochs_) {}

RowTableSize RowTable::size() const {
  const uint64_t rows = index_.entries(), places = index_.segments() * RowSegment::kCapacity;
  return {
      .rows = rows,
      .bytes = numbers_.bytes(),
      .indexBytes = kEmptyBytes + index_.bytes() + (places == 0 ? 0 : kFirstRowBytes - sizeof(RowSegment)),
      .places = places,
      .load = places == 0 ? 0 : static_cast<double>(rows) / static_cast<double>(places),
      .splits = index_.splits()};
}

template <class Use>
void RowTable::forEachBatch(std::span<const uint64_t> ids, const Use& use) const {
  const size_t most = storage_->batchRows();
  if (most <= RowIndex::kBlock) return index_.pipeline(ids, use);
  std::vector<uint32_t> rows(std::min(most, ids.size()));
  for (size_t first = 0; first < ids.size(); first += most) {
    const auto some = std::span(rows).first(std::min(most, ids.size() - first));
    index_.findBatch(ids.subspan(first, some.size()), some);
    use(first, RowStorage::Rows(some), RowStorage::Rows());
  }
}

uint64_t RowTable::gather(std::span<const uint64_t> ids, std::span<float> out) const {
  const Epochs::Guard guard(*epochs_);
  const uint32_t width = dim();
  uint64_t known = 0;
  forEachBatch(ids, [&](uint64_t first, RowStorage::Rows rows, RowStorage::Rows next) {
    storage_->gather(rows, out.subspan(first * width, rows.size() * width), next);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != kNoRow) {
        ++known;
      } else {
        options_.initial.fill(ids[first + i], out.subspan((first + i) * width, width));
      }
    }
  });
  return known;
}

uint64_t RowTable::find(std::span<const uint64_t> ids, std::span<uint32_t> rows) const {
  const Epochs::Guard guard(*epochs_);
  return index_.findBatch(ids, rows);
}

uint64_t RowTable::applyGuarded(std::span<const uint64_t> ids, std::span<const float> gradients,
                                const RowChange& change, const UpdateScalars& update, bool rowSteps,
                                Version version, std::vector<size_t>* missed) {
  const uint32_t width = dim();
  std::vector<uint64_t> numbers(std::min<size_t>(storage_->batchRows(), ids.size()));
  uint64_t known = 0;
  forEachBatch(ids, [&](uint64_t first, RowStorage::Rows rows, RowStorage::Rows next) {
    for (const uint32_t row : next) {
      if (row != kNoRow) numbers_.prefetchMeta(row);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == kNoRow) {
        if (missed != nullptr) missed->push_back(first + i);
        continue;
      }
      const RowMeta meta = numbers_.meta(rows[i]);
      numbers[i] = meta.count() + 1;
      numbers_.setMeta(rows[i], meta.updated(version.value));
      ++known;
    }
    const auto own = std::span<const uint64_t>(numbers).first(rowSteps ? rows.size() : 0);
    storage_->apply(rows, gradients.subspan(first * width, rows.size() * width), {update, own, change}, next);
    // A concurrent older update may have written an older version back. Restore the newer one, so that a scan
    // for rows changed since a version never finds an old version next to new values.
    for (const uint32_t row : rows) {
      if (row == kNoRow) continue;
      const RowMeta meta = numbers_.meta(row);
      if (meta.version() < version.value) numbers_.setMeta(row, RowMeta::of(version.value, meta.count()));
    }
  });
  return known;
}

std::vector<uint64_t> RowTable::missing(std::span<const uint64_t> ids) const {
  const Epochs::Guard guard(*epochs_);
  std::vector<uint64_t> found;
  index_.pipeline(ids, [&](uint64_t first, RowStorage::Rows rows, RowStorage::Rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == kNoRow) found.push_back(ids[first + i]);
    }
  });
  return found;
}

Status RowTable::checkLimit(uint64_t rows) const {
  const uint64_t there = index_.entries(), most = std::min<uint64_t>(options_.limits.rowsMax, kNoRow);
  if (there > most || rows > most - there) {
    return {ErrorCode::overloaded,
            fmt::format("embedding table: cannot add {} rows to the {} of this row shard, whose share of "
                        "max_rows is {}; raise tables[].max_rows, or set evict or admit",
                        rows, there, most)};
  }
  return {};
}

Result<uint64_t> RowTable::insertMissing(std::span<const uint64_t> ids, Version version) {
  std::vector<uint64_t> wanted = missing(ids);
  if (wanted.empty()) return uint64_t{0};
  if (!checkLimit(wanted.size()).ok()) {
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    PSD_RETURN_IF_ERROR(checkLimit(wanted.size()));
  }
  return insert(wanted, version);
}

Result<uint64_t> RowTable::insert(std::span<const uint64_t> wanted, Version version) {
  if (wanted.empty()) return uint64_t{0};
  PSD_RETURN_IF_ERROR(numbers_.prepare(wanted.size()));
  std::vector<uint64_t> made;
  made.reserve(wanted.size());
  std::vector<uint32_t> rows(std::min<size_t>(storage_->batchRows(), wanted.size()));
  for (size_t first = 0; first < wanted.size(); first += rows.size()) {
    const size_t count = std::min(rows.size(), wanted.size() - first);
    const auto some = wanted.subspan(first, count);
    if (insertBatch(some, std::span(rows).first(count), version, made)) continue;
    PSD_RETURN_IF_ERROR(erase(made));
    PSD_RETURN_IF_ERROR(state());
    return Error{
        ErrorCode::overloaded,
        "embedding table: the index is full: too many ids with nearly equal hashes, or out of memory"};
  }
  return static_cast<uint64_t>(made.size());
}

bool RowTable::insertBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows, Version version,
                           std::vector<uint64_t>& made) {
  for (uint32_t& row : rows) {
    row = numbers_.take();
    numbers_.setMeta(row, RowMeta::of(version.value, 0));
  }
  storage_->create(rows, ids, options_.initial);
  bool fits = state().ok();
  for (size_t i = 0; i < ids.size(); ++i) {
    // So far only unreachable memory was written: readers see whole rows once they are in the index.
    const uint32_t row = fits ? index_.insert(ids[i], rows[i]) : kNoRow;
    fits = fits && row != kNoRow;
    if (row == rows[i]) {
      made.push_back(ids[i]);
    } else {
      numbers_.releaseRow(rows[i]);
    }
  }
  return fits;
}

Result<uint64_t> RowTable::erase(std::span<const uint64_t> ids) {
  std::vector<uint32_t> rows;
  const bool done = index_.erase(ids, rows);
  const uint64_t count = rows.size();
  numbers_.retire(std::move(rows));
  if (done) return count;
  return Error{ErrorCode::overloaded, "embedding table: out of memory while erasing rows from the index"};
}

Status RowTable::reserve(uint64_t rows) {
  const uint64_t there = index_.entries();
  if (rows <= there) return {};
  PSD_RETURN_IF_ERROR(checkLimit(rows - there));
  PSD_RETURN_IF_ERROR(numbers_.prepare(rows - there, true));
  if (index_.reserve(rows)) return {};
  return {ErrorCode::overloaded, fmt::format("embedding table: out of memory for an index of {} rows", rows)};
}

void RowTable::nextWhere(RowCursor& cursor, std::vector<RowEntry>& out,
                         const std::function<bool(RowMeta)>& wanted) const {
  index_.nextUnsorted(cursor, out);
  for (const RowEntry& entry : out) numbers_.prefetchMeta(entry.row);
  std::erase_if(out, [&](const RowEntry& entry) { return !wanted(numbers_.meta(entry.row)); });
  std::sort(out.begin(), out.end(), [](const RowEntry& a, const RowEntry& b) { return a.hash < b.hash; });
}

Status RowTable::restore(std::span<const uint64_t> ids, std::span<const RowMeta> metas,
                         std::span<const std::span<const float>> planes) {
  const auto made = insertRecorded(ids, Version{0});
  if (!made.ok()) return made.error();
  std::vector<uint32_t> rows(ids.size());
  find(ids, rows);
  for (size_t i = 0; i < rows.size(); ++i) numbers_.setMeta(rows[i], metas[i]);
  for (uint32_t plane = 0; plane < planes.size(); ++plane) storage_->writePlane(plane, rows, planes[plane]);
  return state();
}

}  // namespace psd
