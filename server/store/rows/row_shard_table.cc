#include "server/store/rows/row_shard_table.h"

#include <utility>

namespace psd {

StagedRows rowsAt(const std::vector<RowShardTable>& tables, const StagedRows& part,
                  std::span<const size_t> places) {
  auto kept = std::make_shared<CollectedRows>();
  size_t first = 0, value = 0, next = 0;
  for (const RowRun& run : part.rows.runs) {
    const uint64_t dim = findTable(tables, run.table)->rows->dim();
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
  return CollectedRows::stage(std::move(kept));
}

}  // namespace psd
