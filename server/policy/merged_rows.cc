#include "server/policy/merged_rows.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "common/types/row_hash.h"

namespace psd {
namespace {

/// One row of one part.
struct Entry {
  uint32_t table = 0;
  uint64_t hash = 0;
  size_t part = 0;
  uint64_t id = 0;
  size_t value = 0;  // index of its first value in the part's gradients
};

std::vector<Entry> entriesOf(const RowShard& shard, std::span<const StagedRows> parts,
                             std::span<const float> weights) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < parts.size(); i++) {
    if (weights[i] == 0) continue;
    size_t row = 0, value = 0;
    for (const RowRun& run : parts[i].rows.runs) {
      const uint64_t dim = shard.table(run.table)->dim();
      for (uint32_t k = 0; k < run.count; k++, row++, value += dim) {
        const uint64_t id = parts[i].rows.ids[row];
        entries.push_back({run.table, rowHash(id), i, id, value});
      }
    }
  }
  // The hash is a bijection of the id. The stable sort keeps a part's gradients of one row in order.
  std::ranges::stable_sort(
      entries, {}, [](const Entry& entry) { return std::tuple(entry.table, entry.hash, entry.part); });
  return entries;
}

}  // namespace

StagedRows mergeRows(const RowShard& shard, std::span<const StagedRows> parts,
                     std::span<const float> weights) {
  auto merged = std::make_shared<CollectedRows>();
  const Entry* before = nullptr;
  const std::vector<Entry> entries = entriesOf(shard, parts, weights);
  for (const Entry& entry : entries) {
    const uint64_t dim = shard.table(entry.table)->dim();
    if (!before || before->table != entry.table || before->hash != entry.hash) {
      if (!before || before->table != entry.table) merged->runs.push_back({entry.table, 0});
      merged->runs.back().count++;
      merged->ids.push_back(entry.id);
      merged->gradients.resize(merged->gradients.size() + dim);
    }
    float* const sum = merged->gradients.data() + merged->gradients.size() - dim;
    const float* const gradient = parts[entry.part].gradients.data() + entry.value;
    for (uint64_t d = 0; d < dim; d++) sum[d] += weights[entry.part] * gradient[d];
    before = &entry;
  }
  return CollectedRows::stage(std::move(merged));
}

}  // namespace psd
