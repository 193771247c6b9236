#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/store/rows/row_table.h"

namespace psd {

/// A row and its update statistics. A value type.
struct HotRow {
  uint64_t id = 0;
  RowMeta meta;
};

/// The `most` rows of a table with the most updates since their creation, as far as RowMeta counts them, in
/// descending order. Scans all rows without a lock, concurrently with updates: rows created or erased
/// meanwhile may be missing. May be called on any thread that can block for that long.
std::vector<HotRow> hottestRows(const RowTable& table, size_t most);

}  // namespace psd
