#include "server/store/rows/row_turnover.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "server/store/rows/row_eviction.h"

namespace psd {
namespace {

/// Removes duplicate ids.
void removeDuplicates(std::vector<uint64_t>& ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

bool RowTurnover::sweeps() const {
  return std::ranges::any_of(tables_, [](const RowShardTable& table) { return table.gate->sweeps(); });
}

void RowTurnover::adoptRules() {
  for (const RowShardTable& table : tables_) {
    if (table.gate->adoptRules()) table.rows->setLimits({.rowsMax = table.gate->rules().rowsMax});
  }
}

std::vector<uint32_t> RowTurnover::numbersOf(const RowShardTable& table, const RowIds& rows) const {
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

std::vector<CreatedRows> RowTurnover::missing(const RowIds& rows) const {
  std::vector<CreatedRows> wanted;
  forEachRun(rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const RowShardTable& of = tableOf(run);
    std::vector<uint64_t> missing = of.rows->missing(ids);
    if (missing.empty()) return;
    const auto same = std::ranges::find(wanted, &of, &CreatedRows::table);
    if (same == wanted.end()) {
      wanted.push_back({&of, std::move(missing)});
    } else {
      same->ids.insert(same->ids.end(), missing.begin(), missing.end());
    }
  });
  return wanted;
}

Status RowTurnover::evict(const RowShardTable& table, const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> gone = ids;
  const Status erased = erase(table, gone);
  if (block_.logs() && !gone.empty()) {
    evictedRuns_.push_back({table.index, static_cast<uint32_t>(gone.size())});
    evictedIds_.insert(evictedIds_.end(), gone.begin(), gone.end());
  }
  return erased;
}

Status RowTurnover::erase(const RowShardTable& table, std::vector<uint64_t>& gone) {
  if (gone.empty()) return {};
  const RowRun run{table.index, static_cast<uint32_t>(gone.size())};
  if (observer_) observer_->beforeChange({{&run, 1}, gone});
  const auto erased = table.rows->erase(gone);
  if (!erased.ok()) {
    std::erase_if(gone, [&](uint64_t id) { return table.rows->missing({&id, 1}).empty(); });
  }
  table.counts->evicted += gone.size();
  if (pendingEvicted_) {
    auto& ofTable = (*pendingEvicted_)[static_cast<size_t>(&table - tables_.data())];
    ofTable.insert(ofTable.end(), gone.begin(), gone.end());
    pendingEvictedCount_ += gone.size();
    if (pendingEvictedCount_ > kEvictedMax) pendingEvicted_.reset();
  }
  countBytes();
  return erased.status();
}

std::optional<std::vector<std::vector<uint64_t>>> RowTurnover::takeEvicted() {
  pendingEvictedCount_ = 0;
  return std::exchange(pendingEvicted_, std::vector<std::vector<uint64_t>>(tables_.size()));
}

void RowTurnover::evictDue(uint64_t number, const RowIds& spared) {
  adoptRules();
  for (const RowShardTable& table : tables_) {
    table.rows->reclaim();
    if (!table.gate->sweeps()) continue;
    // Rows that cannot be evicted for lack of memory are due again in the next pass.
    static_cast<void>(
        evict(table, dueRows(*table.rows, table.gate->rules().evict, number, numbersOf(table, spared))));
  }
}

Result<PreparedRows> RowTurnover::prepare(const StagedRows& part, Version version) {
  adoptRules();
  PreparedRows prepared;
  prepared.part = part;
  std::vector<CreatedRows> wanted = missing(part.rows);
  if (wanted.empty()) return prepared;
  select(wanted, prepared, version);
  const Status made = makeRows(wanted, filterBytesFor(prepared.counted), part.rows, version);
  if (!made.ok()) {
    for (const CreatedRows& of : wanted) of.table->counts->refused += of.ids.size();
    return made.error();
  }
  prepared.created = std::move(wanted);
  return prepared;
}

void RowTurnover::select(std::vector<CreatedRows>& wanted, PreparedRows& prepared, Version version) const {
  std::map<uint32_t, std::vector<uint64_t>> refused;  // sorted ids by table
  for (CreatedRows& of : wanted) {
    RowGate& gate = *of.table->gate;
    if (!gate.requiresAdmission()) continue;
    removeDuplicates(of.ids);
    if (gate.filterTerms()) {
      const auto& [pushes, blockBits] = *gate.filterTerms();
      prepared.counted.push_back({of.table->index, static_cast<uint32_t>(of.ids.size()), pushes, blockBits});
      prepared.countedIds.insert(prepared.countedIds.end(), of.ids.begin(), of.ids.end());
    }
    const auto end = std::stable_partition(of.ids.begin(), of.ids.end(),
                                           [&](uint64_t id) { return gate.admits(id, version.value); });
    if (end != of.ids.end()) refused[of.table->index].assign(end, of.ids.end());
    of.ids.erase(end, of.ids.end());
  }
  std::erase_if(wanted, [](const CreatedRows& of) { return of.ids.empty(); });
  if (refused.empty()) return;
  std::vector<size_t> kept;
  size_t place = 0;
  forEachRun(prepared.part.rows, [&](const RowRun& run, std::span<const uint64_t> ids) {
    const auto of = refused.find(run.table);
    const size_t end = kept.size() + ids.size();
    for (const uint64_t id : ids) {
      const bool out = of != refused.end() && std::ranges::binary_search(of->second, id);
      if (!out) kept.push_back(place);
      place++;
    }
    prepared.leftOut.push_back({run.table, static_cast<uint32_t>(end - kept.size())});
  });
  prepared.part = rowsAt(tables_, prepared.part, kept);
}

Status RowTurnover::evictForLimit(const std::vector<CreatedRows>& wanted, const RowIds& spared,
                                  Version version) {
  for (const CreatedRows& of : wanted) {
    const RowRules& rules = of.table->gate->rules();
    if (rules.evict.by == EvictRule::By::never) continue;
    const uint64_t there = of.table->rows->size().rows;
    if (of.ids.size() <= rules.rowsMax && there + of.ids.size() <= rules.rowsMax) continue;
    std::vector<uint64_t> ids = of.ids;
    std::ranges::sort(ids);
    const auto count = static_cast<uint64_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
    if (count > rules.rowsMax || there + count <= rules.rowsMax) continue;
    PSD_RETURN_IF_ERROR(
        evict(*of.table, rowsToEvict(*of.table->rows, rules.evict, version.value,
                                     there + count - rules.rowsMax, numbersOf(*of.table, spared))));
  }
  return {};
}

Status RowTurnover::takeBytes(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared,
                              Version version) {
  uint64_t bytes = 0;
  const auto take = [&] {
    bytes = filters;
    for (const CreatedRows& of : wanted) bytes += of.table->rows->bytesFor(of.ids.size());
    const bool taken = bytes_->take(bytes);
    if (taken) counted_ += bytes;
    return taken;
  };
  if (take()) return {};
  for (CreatedRows& of : wanted) removeDuplicates(of.ids);
  if (take()) return {};
  // Select the rows of all tables before the first one is evicted: a push that is rejected because of one
  // table or filter evicts no rows of the others, even if it is sent again.
  uint64_t stillNeeded = filters;
  std::vector<std::pair<const RowShardTable*, std::vector<uint64_t>>> going;
  for (const CreatedRows& of : wanted) {
    const EvictRule& rule = of.table->gate->rules().evict;
    std::vector<uint64_t> ids;
    if (rule.by != EvictRule::By::never) {
      ids = rowsToEvict(*of.table->rows, rule, version.value, of.ids.size(), numbersOf(*of.table, spared));
    }
    // Rows that guards can still access are not free yet; the memory reserved in place of theirs serves the
    // next rows.
    if (ids.empty()) {
      stillNeeded += of.table->rows->bytesFor(of.ids.size());
    } else {
      going.emplace_back(of.table, std::move(ids));
    }
  }
  if (bytes_->take(stillNeeded)) {
    counted_ += stillNeeded;
    for (const auto& [table, ids] : going) {
      PSD_RETURN_IF_ERROR(evict(*table, ids));  // recounts bytes_, dropping the reservation
      table->rows->reclaim();
    }
    if (!going.empty()) {
      bytes_->change(0, stillNeeded);
      counted_ += stillNeeded;
    }
    return {};
  }
  return {ErrorCode::overloaded,
          fmt::format("the embedding tables use {} bytes and need {} more; limits.table_bytes is {}",
                      bytes_->taken(), bytes, bytes_->limit())};
}

Status RowTurnover::makeRows(std::vector<CreatedRows>& wanted, uint64_t filters, const RowIds& spared,
                             Version version) {
  PSD_RETURN_IF_ERROR(evictForLimit(wanted, spared, version));
  // Check before the first row is created, since updates without a lock could find it and be lost with it on
  // a rollback; and before rows are evicted for memory.
  PSD_RETURN_IF_ERROR(checkLimit(wanted));
  PSD_RETURN_IF_ERROR(takeBytes(wanted, filters, spared, version));
  Status status;
  for (size_t i = 0; i < wanted.size() && status.ok(); i++) {
    const auto began = std::chrono::steady_clock::now();
    const auto made = wanted[i].table->rows->insertMissing(wanted[i].ids, version);
    const auto took = static_cast<uint64_t>((std::chrono::steady_clock::now() - began).count());
    status = made.status();
    if (made.ok()) wanted[i].count = *made;
    std::atomic<uint64_t>& longest = wanted[i].table->counts->longestInsertNs;
    longest = std::max<uint64_t>(longest, took);
  }
  if (!status.ok()) static_cast<void>(eraseCreated(wanted));
  countBytes();
  return status;
}

Status RowTurnover::checkLimit(std::vector<CreatedRows>& wanted) {
  for (CreatedRows& of : wanted) {
    if (of.table->rows->checkLimit(of.ids.size()).ok()) continue;
    removeDuplicates(of.ids);
    PSD_RETURN_IF_ERROR(of.table->rows->checkLimit(of.ids.size()));
  }
  return {};
}

Status RowTurnover::rollBack(const std::vector<CreatedRows>& created) {
  for (const CreatedRows& of : created) of.table->counts->refused += of.count;
  return eraseCreated(created);
}

Status RowTurnover::eraseCreated(const std::vector<CreatedRows>& created) {
  Status status;
  for (const CreatedRows& of : created) {
    if (of.count == 0) continue;
    const auto erased = of.table->rows->erase(of.ids);
    if (!erased.ok()) status = erased.status();
  }
  countBytes();
  return status;
}

void RowTurnover::countBytes() {
  uint64_t now = kEmptyRowShardBytes;
  for (const RowShardTable& table : tables_) {
    const RowTableSize size = table.rows->size();
    now += size.bytes + size.indexBytes + table.gate->bytes();
  }
  bytes_->change(counted_, now);
  counted_ = now;
}

uint64_t RowTurnover::filterBytesFor(std::span<const CountedRun> runs) const {
  uint64_t bytes = 0;
  for (const CountedRun& run : runs) bytes += findTable(tables_, run.table)->gate->bytesToCount();
  return bytes;
}

void RowTurnover::count(std::span<const CountedRun> runs, std::span<const uint64_t> ids) {
  size_t at = 0;
  bool resized = false;
  for (const CountedRun& run : runs) {
    RowGate& gate = *findTable(tables_, run.table)->gate;
    const uint64_t before = gate.bytes();
    for (uint32_t i = 0; i < run.count; i++) gate.count(ids[at++], {run.pushes, run.blockBits});
    resized = resized || gate.bytes() != before;
  }
  if (resized) countBytes();
}

void RowTurnover::commit(PreparedRows& prepared) {
  count(prepared.counted, prepared.countedIds);
  for (const CreatedRows& of : prepared.created) of.table->counts->created += of.count;
  for (const RowRun& run : prepared.leftOut) tableOf(run).counts->notAdmitted += run.count;
  if (observer_) observer_->beforeChange(prepared.part.rows);
  prepared.evictedRuns = std::exchange(evictedRuns_, {});
  prepared.evictedIds = std::exchange(evictedIds_, {});
}

Status RowTurnover::replay(const RowIds& rows, const RowSideChanges& beside, Version version) {
  Status status;
  forEachRun(beside.evicted, [&](const RowRun& run, std::span<const uint64_t> ids) {
    std::vector<uint64_t> gone(ids.begin(), ids.end());
    const Status erased = erase(tableOf(run), gone);
    if (status.ok()) status = erased;
  });
  PSD_RETURN_IF_ERROR(status);
  count(beside.counted, beside.countedIds);
  for (const CreatedRows& of : missing(rows)) {
    PSD_ASSIGN_OR_RETURN(const uint64_t made, of.table->rows->insertRecorded(of.ids, version));
    of.table->counts->created += made;
  }
  countBytes();
  if (observer_) observer_->beforeChange(rows);
  return {};
}

}  // namespace psd
