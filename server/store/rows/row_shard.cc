#include "server/store/rows/row_shard.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/types/row_hash.h"

namespace psd {

void RowShard::setOptimizer(const Optimizer& optimizer) {
  optimizer_ = optimizer;
  for (const Table& table : tables_) table.rows->setOptimizer(optimizer);
}

Status RowShard::check(const RowIds& rows) const {
  const auto bad = [this](const std::string& why) {
    return Status(ErrorCode::badSlice, fmt::format("rows of shard {}: {}", id().value, why));
  };
  uint64_t count = 0;
  for (const RowRun& run : rows.runs) {
    if (run.count == 0) return bad(fmt::format("a run of table {} has no ids", run.table));
    if (table(run.table) == nullptr) {
      std::vector<uint32_t> indices;
      for (const Table& of : tables_) indices.push_back(of.index);
      return bad(
          fmt::format("table {} is not in it; its tables are {}", run.table, fmt::join(indices, ", ")));
    }
    count += run.count;
  }
  if (count != rows.ids.size()) {
    return bad(fmt::format("its runs cover {} ids, not the {} ids given", count, rows.ids.size()));
  }
  const HashRange range = hashes();
  for (const uint64_t row : rows.ids) {
    const uint64_t hash = rowHash(row);
    if (range.contains(hash)) continue;
    return bad(fmt::format("id {} has the hash {:#018x}, outside the range {:#018x} to {:#018x}", row, hash,
                           range.first, range.last));
  }
  return {};
}

Status RowShard::checkSideChanges(const RowSideChanges& beside) const {
  PSD_RETURN_IF_ERROR(check(beside.evicted));
  std::vector<RowRun> runs;
  for (const CountedRun& run : beside.counted) {
    runs.push_back({run.table, run.count});
    if (AdmissionFilter::Terms{run.pushes, run.blockBits}.valid()) continue;
    return {ErrorCode::badSlice,
            fmt::format("rows of shard {}: invalid admission filter: {} pushes, 2^{} blocks", id().value,
                        run.pushes, run.blockBits)};
  }
  return check({runs, beside.countedIds});
}

uint64_t RowShard::valueCount(std::span<const RowRun> runs) const {
  uint64_t count = 0;
  for (const RowRun& run : runs) count += uint64_t{run.count} * table(run.table)->dim();
  return count;
}

uint64_t RowShard::gather(const RowIds& rows, std::span<float> out) const {
  uint64_t known = 0, at = 0;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const Table& of = *find(run.table);
    const uint64_t values = ids.size() * of.rows->dim();
    const uint64_t there = of.rows->gather(ids, out.subspan(at, values));
    of.counts->pulled += ids.size();
    of.counts->unknown += ids.size() - there;
    known += there;
    at += values;
  });
  return known;
}

bool RowShard::lacks(const RowIds& rows) const {
  bool lacks = false;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    lacks = lacks || !table(run.table)->missing(ids).empty();
  });
  return lacks;
}

// --- Updates -----------------------------------------------------------------------------------------

void RowShard::apply(const RowIds& rows, std::span<const float> gradients, const RowChange& change,
                     const UpdateScalars& update, Version version, std::vector<size_t>* missed) {
  size_t at = 0, first = 0;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const Table& of = *find(run.table);
    const size_t values = ids.size() * of.rows->dim();
    const size_t before = missed != nullptr ? missed->size() : 0;
    uint64_t known = ids.size();
    forEachStep(update, run.table, 1, [&](const UpdateScalars& scalars, uint64_t, uint64_t) {
      known = of.rows->applyGuarded(ids, gradients.subspan(at, values), change, scalars, of.rowSteps, version,
                                    missed);
    });
    for (size_t i = before; missed != nullptr && i < missed->size(); i++) (*missed)[i] += first;
    of.counts->pushed += known;
    at += values;
    first += ids.size();
  });
}

std::vector<size_t> RowShard::applyRacing(const RowIds& rows, std::span<const float> gradients,
                                          const RowChange& change, const UpdateScalars& update) {
  // The guard covers the read of version(): once all earlier guards have ended, no update with an earlier
  // version is in progress.
  const Epochs::Guard guard(tables_.front().rows->epochs());
  std::vector<size_t> missed;
  apply(rows, gradients, change, update, version(), &missed);
  return missed;
}

Status RowShard::update(PreparedRows& prepared, const RowChange& change, const UpdateScalars& update,
                        Version version) {
  turnover_.commit(prepared);
  apply(prepared.part.rows, prepared.part.gradients, change, update, version, nullptr);
  return state();
}

Status RowShard::replay(const StagedRows& part, const RowSideChanges& beside, const UpdateScalars& update) {
  const Version version{update.number};
  PSD_RETURN_IF_ERROR(turnover_.replay(part.rows, beside, version));
  apply(part.rows, part.gradients, {}, update, version, nullptr);
  return state();
}

Status RowShard::update(const StagedRows& part, const RowChange& change, const UpdateScalars& update) {
  PSD_ASSIGN_OR_RETURN(PreparedRows prepared, turnover_.prepare(part, Version{update.number}));
  return this->update(prepared, change, update, Version{update.number});
}

StagedRows RowShard::rowsIn(const StagedRows& part, const std::vector<PushedRange>& ranges) const {
  std::vector<size_t> places;
  for (size_t i = 0; i < part.rows.ids.size(); i++) {
    const uint64_t unit = (rowHash(part.rows.ids[i]) >> 32) - range().begin;
    const bool inside = std::ranges::any_of(ranges, [unit](const PushedRange& range) {
      return unit >= range.begin && unit - range.begin < range.count;
    });
    if (inside) places.push_back(i);
  }
  return psd::rowsAt(tables_, part, places);
}

Status RowShard::state() const {
  for (const Table& table : tables_) PSD_RETURN_IF_ERROR(table.rows->state());
  return {};
}

RowTableSize RowShard::size() const {
  RowTableSize sum;
  for (const Table& table : tables_) {
    const RowTableSize size = table.rows->size();
    sum.rows += size.rows;
    sum.bytes += size.bytes;
    sum.indexBytes += size.indexBytes;
    sum.places += size.places;
    sum.splits += size.splits;
  }
  return sum;
}

}  // namespace psd
