#include "server/store/rows/row_shard.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/types/row_hash.h"
#include "server/store/rows/row_eviction.h"

namespace psd {
namespace {

/// Calls `visit(run, ids)` for each run with the ids of it.
template <class Visit>
void forEachRun(const RowIds& rows, Visit visit) {
  size_t begin = 0;
  for (const RowRun& run : rows.runs) {
    visit(run, rows.ids.subspan(begin, run.count));
    begin += run.count;
  }
}

/// Ids that repeat are one row.
void leaveOnce(std::vector<uint64_t>& ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

void RowShard::setOptimizer(const Optimizer& optimizer) {
  optimizer_ = optimizer;
  for (const Table& table : tables_) table.rows->setOptimizer(optimizer);
}

const RowShard::Table* RowShard::find(uint32_t index) const {
  const auto found = std::ranges::find(tables_, index, &Table::index);
  return found == tables_.end() ? nullptr : &*found;
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
    return bad(fmt::format("its runs are of {} ids, and there are {}", count, rows.ids.size()));
  }
  const HashRange range = hashes();
  for (const uint64_t row : rows.ids) {
    const uint64_t hash = rowHash(row);
    if (range.contains(hash)) continue;
    return bad(fmt::format("id {} has the hash {:#018x}, and the shard has those from {:#018x} to {:#018x}",
                           row, hash, range.first, range.last));
  }
  return {};
}

Status RowShard::checkBeside(const RowsBeside& beside) const {
  PSD_RETURN_IF_ERROR(check(beside.evicted));
  std::vector<RowRun> runs;
  for (const CountedRun& run : beside.counted) {
    runs.push_back({run.table, run.count});
    if (AdmissionFilter::Terms{run.pushes, run.blockBits}.valid()) continue;
    return {ErrorCode::badSlice,
            fmt::format("rows of shard {}: there is no filter that counts up to {} in 2^{} blocks",
                        id().value, run.pushes, run.blockBits)};
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

// --- Rows that come and go ---------------------------------------------------------------------------

void RowShard::followRules() {
  for (const Table& table : tables_) {
    if (table.gate->follow()) table.rows->setLimits({.rowsMax = table.gate->rules().rowsMax});
  }
}

std::vector<uint32_t> RowShard::numbersOf(const Table& table, const RowIds& rows) const {
  std::vector<uint32_t> numbers;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    if (run.table != table.index) return;
    const size_t before = numbers.size();
    numbers.resize(before + ids.size());
    table.rows->find(ids, std::span(numbers).subspan(before));
  });
  std::erase(numbers, kNoRow);
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<RowShard::Created> RowShard::missing(const RowIds& rows) const {
  std::vector<Created> wanted;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const Table& of = *find(run.table);
    std::vector<uint64_t> missing = of.rows->missing(ids);
    if (missing.empty()) return;
    const auto same = std::ranges::find(wanted, &of, &Created::table);
    if (same == wanted.end()) {
      wanted.push_back({&of, std::move(missing)});
    } else {
      same->ids.insert(same->ids.end(), missing.begin(), missing.end());
    }
  });
  return wanted;
}

Status RowShard::evict(const Table& table, const std::vector<uint64_t>& ids) {
  if (ids.empty()) return {};
  const RowRun run{table.index, static_cast<uint32_t>(ids.size())};
  if (observer_) observer_->beforeChange({{&run, 1}, ids});
  const auto erased = table.rows->erase(ids);
  std::vector<uint64_t> gone = ids;
  if (!erased.ok()) {
    std::erase_if(gone, [&](uint64_t id) { return table.rows->missing({&id, 1}).empty(); });
  }
  table.counts->evicted += gone.size();
  if (logs() && !gone.empty()) {
    evictedRuns_.push_back({table.index, static_cast<uint32_t>(gone.size())});
    evictedIds_.insert(evictedIds_.end(), gone.begin(), gone.end());
  }
  if (taken_) {
    auto& ofTable = (*taken_)[static_cast<size_t>(&table - tables_.data())];
    ofTable.insert(ofTable.end(), gone.begin(), gone.end());
    takenCount_ += gone.size();
    if (takenCount_ > kEvictedMax) taken_.reset();
  }
  countBytes();
  return erased.status();
}

std::optional<std::vector<std::vector<uint64_t>>> RowShard::takeEvicted() {
  takenCount_ = 0;
  return std::exchange(taken_, std::vector<std::vector<uint64_t>>(tables_.size()));
}

void RowShard::evictDue(uint64_t number, const RowIds& spared) {
  followRules();
  for (const Table& table : tables_) {
    table.rows->reclaim();
    if (!table.gate->sweeps()) continue;
    // What there is no memory to take out now is due again in the next pass.
    static_cast<void>(
        evict(table, dueRows(*table.rows, table.gate->rules().evict, number, numbersOf(table, spared))));
  }
}

Result<RowShard::Prepared> RowShard::prepare(const StagedRows& part, Version version) {
  followRules();
  Prepared prepared{part, {}, {}, {}, {}, {}};
  std::vector<Created> wanted = missing(part.rows);
  if (wanted.empty()) return prepared;
  select(wanted, prepared, version);
  const Status made = makeRows(wanted, part.rows, version);
  for (const Created& of : wanted) {
    if (made.ok()) {
      of.table->counts->created += of.count;
    } else {
      of.table->counts->refused += of.ids.size();
    }
  }
  if (!made.ok()) return made.error();
  prepared.created = std::move(wanted);
  return prepared;
}

void RowShard::select(std::vector<Created>& wanted, Prepared& prepared, Version version) const {
  std::map<uint32_t, std::vector<uint64_t>> refused;  // ids by table, rising
  for (Created& of : wanted) {
    RowGate& gate = *of.table->gate;
    if (!gate.selects()) continue;
    leaveOnce(of.ids);
    if (const AdmissionFilter* const filter = gate.filter()) {
      const auto& [pushes, blockBits] = filter->terms();
      prepared.counted.push_back({of.table->index, static_cast<uint32_t>(of.ids.size()), pushes, blockBits});
      prepared.countedIds.insert(prepared.countedIds.end(), of.ids.begin(), of.ids.end());
    }
    const auto end = std::stable_partition(of.ids.begin(), of.ids.end(),
                                           [&](uint64_t id) { return gate.admits(id, version.value); });
    if (end != of.ids.end()) refused[of.table->index].assign(end, of.ids.end());
    of.ids.erase(end, of.ids.end());
  }
  std::erase_if(wanted, [](const Created& of) { return of.ids.empty(); });
  if (refused.empty()) return;
  std::vector<size_t> kept;
  size_t place = 0;
  forEachRun(prepared.part.rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const auto of = refused.find(run.table);
    for (const uint64_t id : ids) {
      const bool out = of != refused.end() && std::ranges::binary_search(of->second, id);
      if (!out) kept.push_back(place);
      if (out) find(run.table)->counts->notAdmitted++;
      place++;
    }
  });
  prepared.part = rowsAt(prepared.part, kept);
}

Status RowShard::makeRoom(const std::vector<Created>& wanted, const RowIds& spared, Version version) {
  for (const Created& of : wanted) {
    const RowRules& rules = of.table->gate->rules();
    if (rules.evict.by == EvictRule::By::never) continue;
    const uint64_t there = of.table->rows->size().rows;
    if (of.ids.size() <= rules.rowsMax && there + of.ids.size() <= rules.rowsMax) continue;
    std::vector<uint64_t> ids = of.ids;
    std::ranges::sort(ids);
    const auto count = static_cast<uint64_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
    if (count > rules.rowsMax || there + count <= rules.rowsMax) continue;
    PSD_RETURN_IF_ERROR(
        evict(*of.table, rowsToMakeRoom(*of.table->rows, rules.evict, version.value,
                                        there + count - rules.rowsMax, numbersOf(*of.table, spared))));
  }
  return {};
}

Status RowShard::takeBytes(std::vector<Created>& wanted, const RowIds& spared, Version version) {
  uint64_t bytes = 0;
  const auto take = [&] {
    bytes = 0;
    for (const Created& of : wanted) bytes += of.table->rows->bytesFor(of.ids.size());
    const bool taken = bytes_->take(bytes);
    if (taken) counted_ += bytes;
    return taken;
  };
  if (take()) return {};
  for (Created& of : wanted) leaveOnce(of.ids);
  if (take()) return {};
  uint64_t stillNeeded = 0;
  for (const Created& of : wanted) {
    const EvictRule& rule = of.table->gate->rules().evict;
    std::vector<uint64_t> ids;
    if (rule.by != EvictRule::By::never) {
      ids = rowsToMakeRoom(*of.table->rows, rule, version.value, of.ids.size(), numbersOf(*of.table, spared));
      PSD_RETURN_IF_ERROR(evict(*of.table, ids));
      of.table->rows->reclaim();
    }
    // Rows that readers still look at are not free yet; the memory taken in place of theirs is the next
    // rows'.
    if (ids.empty()) stillNeeded += of.table->rows->bytesFor(of.ids.size());
  }
  if (bytes_->take(stillNeeded)) {
    counted_ += stillNeeded;
    return {};
  }
  return {ErrorCode::overloaded,
          fmt::format("the embedding tables take {} bytes, {} more are needed, and limits.table_bytes is {}",
                      bytes_->taken(), bytes, bytes_->most())};
}

Status RowShard::makeRows(std::vector<Created>& wanted, const RowIds& spared, Version version) {
  PSD_RETURN_IF_ERROR(makeRoom(wanted, spared, version));
  PSD_RETURN_IF_ERROR(takeBytes(wanted, spared, version));
  // Before the first row is there, which updates without a lock would find and then lose with those taken
  // back.
  Status status = checkRoom(wanted);
  for (size_t i = 0; i < wanted.size() && status.ok(); i++) {
    const auto began = std::chrono::steady_clock::now();
    const auto made = wanted[i].table->rows->insertMissing(wanted[i].ids, version);
    const auto took = static_cast<uint64_t>((std::chrono::steady_clock::now() - began).count());
    status = made.status();
    if (made.ok()) wanted[i].count = *made;
    std::atomic<uint64_t>& longest = wanted[i].table->counts->longestInsertNs;
    longest = std::max<uint64_t>(longest, took);
  }
  if (!status.ok()) static_cast<void>(takeBack(wanted));
  countBytes();
  return status;
}

Status RowShard::checkRoom(std::vector<Created>& wanted) {
  for (Created& of : wanted) {
    if (of.table->rows->checkRoom(of.ids.size()).ok()) continue;
    leaveOnce(of.ids);
    PSD_RETURN_IF_ERROR(of.table->rows->checkRoom(of.ids.size()));
  }
  return {};
}

Status RowShard::takeBack(const std::vector<Created>& created) {
  Status status;
  for (const Created& of : created) {
    if (of.count == 0) continue;
    const auto erased = of.table->rows->erase(of.ids);
    if (!erased.ok()) status = erased.status();
  }
  countBytes();
  return status;
}

void RowShard::countBytes() {
  const RowTableSize now = size();
  bytes_->change(counted_, now.bytes + now.indexBytes);
  counted_ = now.bytes + now.indexBytes;
}

// --- Updates -----------------------------------------------------------------------------------------

void RowShard::apply(const RowIds& rows, std::span<const float> gradients, const RowChange& change,
                     const UpdateScalars& update, Version version, std::vector<size_t>* missed) {
  size_t at = 0, first = 0;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const Table& of = *find(run.table);
    const size_t values = ids.size() * of.rows->dim();
    const size_t before = missed != nullptr ? missed->size() : 0;
    const uint64_t known =
        of.rows->apply(ids, gradients.subspan(at, values), change, update, of.rowSteps, version, missed);
    for (size_t i = before; missed != nullptr && i < missed->size(); i++) (*missed)[i] += first;
    of.counts->pushed += known;
    at += values;
    first += ids.size();
  });
}

std::vector<size_t> RowShard::applyRacing(const RowIds& rows, std::span<const float> gradients,
                                          const RowChange& change, const UpdateScalars& update) {
  // Whoever waits until no guard of before is left knows that what comes later is of a later version.
  const Epochs::Guard guard(tables_.front().rows->epochs());
  std::vector<size_t> missed;
  apply(rows, gradients, change, update, version(), &missed);
  return missed;
}

Status RowShard::update(Prepared& prepared, const RowChange& change, const UpdateScalars& update,
                        Version version) {
  size_t at = 0;
  for (const CountedRun& run : prepared.counted) {
    RowGate& gate = *find(run.table)->gate;
    for (uint32_t i = 0; i < run.count; i++) {
      gate.count(prepared.countedIds[at++], {run.pushes, run.blockBits});
    }
  }
  if (observer_) observer_->beforeChange(prepared.part.rows);
  apply(prepared.part.rows, prepared.part.gradients, change, update, version, nullptr);
  prepared.evictedRuns = std::exchange(evictedRuns_, {});
  prepared.evictedIds = std::exchange(evictedIds_, {});
  return state();
}

Status RowShard::update(const StagedRows& part, const RowChange& change, const UpdateScalars& update) {
  PSD_ASSIGN_OR_RETURN(Prepared prepared, prepare(part, Version{update.number}));
  return this->update(prepared, change, update, Version{update.number});
}

Status RowShard::repeat(const RowsBeside& beside) {
  Status status;
  forEachRun(beside.evicted, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const Table& of = *find(run.table);
    const Status gone = evict(of, {ids.begin(), ids.end()});
    if (status.ok()) status = gone;
  });
  size_t at = 0;
  for (const CountedRun& run : beside.counted) {
    RowGate& gate = *find(run.table)->gate;
    for (uint32_t i = 0; i < run.count; i++) {
      gate.count(beside.countedIds[at++], {run.pushes, run.blockBits});
    }
  }
  return status;
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
  return rowsAt(part, places);
}

StagedRows RowShard::rowsAt(const StagedRows& part, std::span<const size_t> places) const {
  struct Kept {
    std::vector<RowRun> runs;
    std::vector<uint64_t> ids;
    std::vector<float> gradients;
  };
  auto kept = std::make_shared<Kept>();
  size_t first = 0, value = 0, next = 0;
  for (const RowRun& run : part.rows.runs) {
    const uint64_t dim = table(run.table)->dim();
    const size_t before = kept->ids.size();
    for (; next < places.size() && places[next] < first + run.count; next++) {
      kept->ids.push_back(part.rows.ids[places[next]]);
      const auto gradient = part.gradients.subspan(value + (places[next] - first) * dim, dim);
      kept->gradients.insert(kept->gradients.end(), gradient.begin(), gradient.end());
    }
    const size_t count = kept->ids.size() - before;
    if (count > 0) kept->runs.push_back({run.table, static_cast<uint32_t>(count)});
    first += run.count;
    value += run.count * dim;
  }
  StagedRows rows{{kept->runs, kept->ids}, kept->gradients, nullptr};
  rows.owner = std::move(kept);
  return rows;
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
