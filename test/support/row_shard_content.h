#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "server/store/rows/row_shard.h"

namespace psd::testing {

/// Everything that a checkpoint holds of a row shard: by table and id the meta word and all planes of each
/// row, and by table the admission filter with its terms. A value type.
struct RowShardContent {
  std::map<std::pair<uint32_t, uint64_t>, std::pair<uint64_t, std::vector<float>>> rows;
  std::vector<std::vector<uint64_t>> filters;
  bool operator==(const RowShardContent&) const = default;
};

inline RowShardContent contentOf(const RowShard& shard) {
  RowShardContent all;
  for (const RowShardTable& table : shard.tables()) {
    RowCursor cursor;
    std::vector<RowEntry> entries;
    for (table.rows->next(cursor, entries); !entries.empty(); table.rows->next(cursor, entries)) {
      for (const RowEntry& entry : entries) {
        auto& [meta, values] = all.rows[{table.index, entry.id}];
        meta = table.rows->meta(entry.row).word;
        for (uint32_t plane = 0; plane < table.rows->layout().planeCount(); plane++) {
          std::vector<float> part(table.rows->layout().width(plane));
          table.rows->readPlane(plane, std::vector{entry.row}, part);
          values.insert(values.end(), part.begin(), part.end());
        }
      }
    }
    std::vector<uint64_t>& counted = all.filters.emplace_back();
    const AdmissionFilter* const filter = table.gate->filter();
    if (filter != nullptr) counted = filter->saved();
    if (counted.empty()) continue;
    counted.push_back(filter->terms().pushes);
    counted.push_back(filter->terms().blockBits);
  }
  return all;
}

}  // namespace psd::testing
