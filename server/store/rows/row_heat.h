#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/store/rows/row_table.h"

namespace psd {

/// A row with what its table knows of its updates. A value type.
struct HotRow {
  uint64_t id = 0;
  RowMeta meta;
};

/// The `most` rows of a table that had the most updates since they came into being, as far as RowMeta counts
/// them; the one with the most first. Looks at all rows, without a lock and beside everybody else: rows that
/// come and go meanwhile may be missing. For any thread that may be busy so long.
std::vector<HotRow> hottestRows(const RowTable& table, size_t most);

}  // namespace psd
