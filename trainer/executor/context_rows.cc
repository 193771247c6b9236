#include "trainer/executor/context_rows.h"

#include <algorithm>

#include "trainer/loop/rows_of_batch.h"

namespace psd {
namespace {

/// Upper bound on the bytes that a RowBatch and its lookups take, excluding values and gradients.
uint64_t idBytes(const std::vector<RowLookup>& lookups, size_t tables) {
  constexpr uint64_t kBytesPerId = 40;     // the id, its place, and its row's id, sorted and unsorted
  constexpr uint64_t kSearchedPerId = 64;  // scratch memory of deduplication, for one table at a time
  std::vector<uint64_t> ofTable(tables);
  uint64_t ids = 0;
  for (const RowLookup& lookup : lookups) {
    ids += lookup.ids.size();
    ofTable[lookup.table] += lookup.ids.size();
  }
  return kBytesPerId * ids + kSearchedPerId * std::ranges::max(ofTable);
}

}  // namespace

Result<std::shared_ptr<ContextRows>> ContextRows::make(RowBatch empty, std::vector<RowLookup> lookups,
                                                       FloatArrays& budget) {
  const uint64_t bytes = idBytes(lookups, empty.tableCount());
  std::shared_ptr<ContextRows> rows(new ContextRows(std::move(empty)));
  PSD_ASSIGN_OR_RETURN(rows->idLease_, budget.lease(bytes, "ids of rows"));
  rows->batchRows_.lookups = std::move(lookups);
  rows->batch_.find(featuresOf(rows->batchRows_.lookups));
  PSD_ASSIGN_OR_RETURN(rows->valueLease_,
                       budget.lease(rows->batch_.allocationBytes(), "rows and their gradients"));
  rows->batch_.allocate();
  return rows;
}

PassRows ContextRows::forPass() {
  bindRows(batch_, 0, batchRows_);
  return {shared_from_this(), &batchRows_};
}

}  // namespace psd
