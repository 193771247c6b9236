#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/ids.h"
#include "server/store/rows/row_rules.h"
#include "server/store/rows/row_table.h"

namespace psd {

// Which rows a rule takes out. What comes out depends on the rows, the rule and the update's number alone,
// not on clocks, row numbers, or the history of the index. For the table's writer.

/// Rows of a table that one update evicts because of what they are; more are left for the next pass.
inline constexpr size_t kDueRowsMax = 65'536;

/// The ids of rows that are due before update `number`: of the hashes that this update looks through, those
/// to which the rule applies. `spared`: row numbers, rising, that stay.
std::vector<uint64_t> dueRows(const RowTable& table, const EvictRule& rule, uint64_t number,
                              std::span<const uint32_t> spared);

/// The ids of rows that leave room for at least `count` others, and some more so that not each update has to
/// do this: of some thousand rows from a place on that `number` stands for, those that the rule would take
/// out first. Empty where so many cannot be had. `spared`: as above.
std::vector<uint64_t> rowsToMakeRoom(const RowTable& table, const EvictRule& rule, uint64_t number,
                                     uint64_t count, std::span<const uint32_t> spared);

}  // namespace psd
