#include "trainer/loop/rows_of_batch.h"

#include <algorithm>
#include <cmath>

#include "common/types/finite.h"

namespace psd {

std::vector<RowBatch::Feature> featuresOf(std::span<const RowLookup> lookups) {
  std::vector<RowBatch::Feature> features;
  for (const RowLookup& lookup : lookups) features.push_back({lookup.table, lookup.ids});
  return features;
}

void bindRows(RowBatch& rows, size_t first, BatchRows& shown) {
  for (size_t i = 0; i < shown.lookups.size(); i++) shown.lookups[i].places = rows.places(first + i);
  shown.blocks.clear();
  for (uint32_t table = 0; table < rows.tableCount(); table++) {
    shown.blocks.push_back({rows.rows(table), rows.gradients(table)});
  }
}

void scaleRowGradients(RowBatch& rows, std::span<const uint32_t> tables, float weight) {
  for (const uint32_t table : tables) {
    for (float& value : rows.gradients(table)) value *= weight;
  }
}

uint64_t valueBytes(const RowBatch& rows) {
  uint64_t bytes = 0;
  for (uint32_t table = 0; table < rows.tableCount(); table++) bytes += rows.rows(table).size_bytes();
  return bytes;
}

uint64_t nonZeroCount(const RowBatch& rows) {
  uint64_t count = 0;
  for (uint32_t table = 0; table < rows.tableCount(); table++) {
    const auto values = rows.rows(table);
    count += values.size() - static_cast<uint64_t>(std::ranges::count(values, 0.f));
  }
  return count;
}

std::string describeNonFiniteRows(const ModelSpec& model, const RowBatch& rows) {
  for (uint32_t table = 0; table < rows.tableCount(); table++) {
    const auto values = rows.gradients(table);
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) continue;
    const auto row = static_cast<size_t>(bad - values.begin()) / rows.dim(table);
    return nonFiniteRow(model.tables[table].name, *bad, rows.ids(table)[row]);
  }
  return {};
}

std::shared_ptr<RowBatch> RowBatchPool::take(const Client& client) {
  for (auto& batch : batches_) {
    if (batch.use_count() > 1) continue;
    // After a move to another number of daemons the rows are partitioned differently.
    if (RowBatch fresh = client.makeRowBatch(); fresh.daemons() != batch->daemons()) {
      batch = std::make_shared<RowBatch>(std::move(fresh));
    }
    return batch;
  }
  return batches_.emplace_back(std::make_shared<RowBatch>(client.makeRowBatch()));
}

}  // namespace psd
