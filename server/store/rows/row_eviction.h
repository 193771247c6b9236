#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/ids.h"
#include "server/store/rows/row_rules.h"
#include "server/store/rows/row_table.h"

namespace psd {

// Selection of the rows that a rule evicts. The result depends only on the rows, the rule and the update's
// number, not on clocks, row numbers or the history of the index. To be called by the table's writer.

/// Maximum number of rows per table that one update evicts because they are due; the rest waits for the next
/// pass.
inline constexpr size_t kDueRowsMax = 65'536;

/// The ids of rows due for eviction before update `number`: those among the hashes this update scans to which
/// the rule applies. `spared`: sorted row numbers to keep.
std::vector<uint64_t> dueRows(const RowTable& table, const EvictRule& rule, uint64_t number,
                              std::span<const uint32_t> spared);

/// The ids of at least `count` rows to evict, plus some more so that not every update has to evict: the first
/// by the rule's order among a few thousand rows, starting at a position derived from `number`. Empty if
/// there are fewer than `count` candidates. `spared`: as above.
std::vector<uint64_t> rowsToEvict(const RowTable& table, const EvictRule& rule, uint64_t number,
                                  uint64_t count, std::span<const uint32_t> spared);

}  // namespace psd
